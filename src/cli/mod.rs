//! The kubectl plugin `kubectl-boundary`: policies compiled and resources judged without a cluster.

mod diff;
mod fleet;
mod input;
mod judge;
mod policies;
mod schema;
mod suite;
mod table;

pub use fleet::Trouble;
pub use input::Diagnostic;
pub use judge::{Change, Judgement, Verdict};

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use jiff::Timestamp;

use crate::api::is_label_value;
use crate::compile::{Capabilities, MutatingApi, Options, Version, compile};
use input::{Diagnostics, Reader};
use judge::{Asker, Judge, NEWEST, Old};

/// Compile boundary policies and judge resources by them without a cluster; make clusters members,
/// and show where policies are enforced.
#[derive(Debug, Parser)]
#[command(
    name = "kubectl-boundary",
    bin_name = "kubectl boundary",
    version,
    after_help = PATHS
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

const PATHS: &str = "\
A PATH is a file, a folder (every *.yaml, *.yml and *.json in it and below, hidden ones left out) \
or - for standard input. A file holds any number of YAML or JSON documents; lists are expanded.";

#[derive(Debug, Subcommand)]
enum Command {
    Compile(Compile),
    Test(Test),
    Register(fleet::Register),
    Unregister(fleet::Unregister),
    Status(fleet::Status),
    Uninstall(fleet::Uninstall),
    Completions(Completions),
    Man(Man),
}

/// Print what a shell needs to complete commands
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kubectl boundary completions bash > ~/.local/share/bash-completion/completions/kubectl-boundary")]
struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Write the man pages into a folder
#[derive(Debug, Args)]
struct Man {
    /// The folder; it is made where it is not there
    folder: PathBuf,
}

/// Print the admission objects that policies become in a cluster
#[derive(Debug, Args)]
#[command(after_help = "\
The cluster scope of the policies is not looked at.

Examples:
  # What the operator applies to a cluster of the newest version
  kubectl boundary compile -f examples/policies

  # What it applies to an older one
  kubectl boundary compile -f examples/policies --kubernetes 1.30

  # What it applies to one of 1.34 with the feature gate MutatingAdmissionPolicy on
  kubectl boundary compile -f examples/policies --kubernetes 1.34 --mutation v1beta1

Exit status: 0, or 2 when something given is wrong or nothing can be enforced in such a cluster \
(before Kubernetes 1.30).")]
struct Compile {
    /// Policies: files, folders or -
    #[arg(short = 'f', long = "filename", value_name = "PATH", required = true, num_args = 1..)]
    policies: Vec<PathBuf>,

    /// The version of the cluster, for example 1.30
    #[arg(long, value_name = "VERSION", default_value_t = NEWEST)]
    kubernetes: Version,

    /// The API of mutations that the cluster acts on [default: v1 from 1.36 on, none before]
    #[arg(long, value_name = "API", value_enum)]
    mutation: Option<MutationApi>,

    /// The time at which exemptions that expire are looked at [default: now]
    #[arg(long, value_name = "TIME")]
    now: Option<Timestamp>,
}

/// Judge resources by policies, as an API server would
#[derive(Debug, Args)]
#[command(after_help = "\
The boundary of a resource is that of its Namespace where one is among the policies or resources, \
else --boundary. The cluster scope of the policies is not looked at. Pods are judged as the policies change them in a \
cluster of the newest version, and what is changed is shown; other resources are judged as they \
are written.

Examples:
  # Judge what would be created
  kubectl boundary test --policies examples/policies --resources examples/workloads

  # Judge rendered manifests of namespaces that are in no file
  kustomize build . | kubectl boundary test --policies policies --resources - --boundary web

  # Judge a change: objects that have an old state are updates
  kubectl boundary test --policies policies --resources new.yaml --old old.yaml --boundary web

  # Run cases with expected verdicts
  kubectl boundary test --suite examples/suite.yaml

Verdicts: allowed, denied, warned, audited, not-checked (with why), unsupported (it can't be told \
here).

Exit status: 0 when nothing is denied and every case of a suite is as expected; 1 when something \
is denied or is not as expected; 2 when something given is wrong or can't be told.")]
struct Test {
    /// Policies, and perhaps Namespaces: files, folders or -
    #[arg(long, value_name = "PATH", num_args = 1.., required_unless_present = "suite", requires = "resources")]
    policies: Vec<PathBuf>,

    /// Resources, and perhaps Namespaces: files, folders or -
    #[arg(long, value_name = "PATH", num_args = 1.., requires = "policies")]
    resources: Vec<PathBuf>,

    /// Resources as they were: one with the same kind, namespace and name is updated, not created
    #[arg(long, value_name = "PATH", num_args = 1.., requires = "policies")]
    old: Vec<PathBuf>,

    /// The boundary of namespaces that are not given
    #[arg(long, value_name = "NAME", value_parser = boundary)]
    boundary: Option<String>,

    /// Who asks, for exemptions of users
    #[arg(long, value_name = "NAME", default_value = "")]
    user: String,

    /// Groups of who asks, besides those that the API server adds itself
    #[arg(long = "group", value_name = "NAME", num_args = 1..)]
    groups: Vec<String>,

    /// The time at which exemptions that expire are looked at [default: now]
    #[arg(long, value_name = "TIME")]
    now: Option<Timestamp>,

    /// How verdicts are printed
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,

    /// Suites: files or folders with cases and what is expected of them
    #[arg(
        long,
        value_name = "FILE",
        num_args = 1..,
        conflicts_with_all = ["policies", "resources", "old", "boundary", "user", "groups", "output"]
    )]
    suite: Vec<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum MutationApi {
    /// The one of 1.36 and later
    V1,
    /// The one of 1.34 and later, with the feature gate on
    V1beta1,
    /// Pods are not changed
    None,
}

impl MutationApi {
    /// What it is to the compiler, if a cluster of `version` can have it.
    fn for_version(self, version: Version) -> Result<Option<MutatingApi>, Error> {
        let (api, first) = match self {
            Self::None => return Ok(None),
            Self::V1beta1 => (MutatingApi::V1beta1, Version::FIRST_MUTATING),
            Self::V1 => (MutatingApi::V1, Version::FIRST_MUTATING_BY_ITSELF),
        };
        if version < first {
            return Err(Error::NoSuchMutation {
                api: api.api_version(),
                version,
                first,
            });
        }
        Ok(Some(api))
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Output {
    /// Lines for people
    Table,
    /// A list for programs
    Json,
}

fn boundary(text: &str) -> Result<String, String> {
    if is_label_value(text) {
        Ok(text.to_owned())
    } else {
        Err("must be a label value that is not empty, like web".to_owned())
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something given is wrong; all of it is listed.
    #[error("{}", lines(.0))]
    Input(Vec<Diagnostic>),
    /// Nothing can be enforced in such a cluster.
    #[error(
        "nothing is enforced in a cluster of Kubernetes {0}: admission policies need {first} or later",
        first = Version::FIRST_VALIDATING
    )]
    NothingEnforced(Version),
    /// A cluster of that version can't act on that version of `MutatingAdmissionPolicy`.
    #[error(
        "Kubernetes {version} can't act on MutatingAdmissionPolicy of {api}: that needs {first} or later"
    )]
    NoSuchMutation {
        /// The API.
        api: &'static str,
        /// The version of the cluster.
        version: Version,
        /// The first version that can.
        first: Version,
    },
    /// An object can't be written as YAML.
    #[error("{0} can't be written: {1}")]
    Serialize(String, String),
    /// The output can't be written.
    #[error("the output can't be written: {0}")]
    Output(#[from] io::Error),
    /// Something in a cluster is in the way.
    #[error("{0}")]
    Fleet(Trouble),
}

fn lines(diagnostics: &[Diagnostic]) -> String {
    let lines: Vec<_> = diagnostics.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

/// What a run found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing is denied, and every case is as expected.
    Fine,
    /// Something is denied, or a case is not as expected.
    Denied,
    /// Something can't be told.
    Unsupported,
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Fine => Self::SUCCESS,
            Outcome::Denied => Self::from(1),
            Outcome::Unsupported => Self::from(2),
        }
    }
}

/// Does what `cli` asks. `now` is the time unless `cli` gives another.
pub fn run(
    cli: Cli,
    stdin: &mut dyn Read,
    stdout: &mut dyn Write,
    now: Timestamp,
) -> Result<Outcome, Error> {
    let mut reader = Reader::new(stdin);
    let (text, outcome) = match cli.command {
        Command::Compile(args) => (compiled(&args, &mut reader, now)?, Outcome::Fine),
        Command::Test(args) if args.suite.is_empty() => tested(args, &mut reader, now)?,
        Command::Test(args) => suite::run(&args.suite, &mut reader, args.now.unwrap_or(now))?,
        Command::Register(args) => return fleet::finish(args.run(stdout)),
        Command::Unregister(args) => return fleet::finish(args.run(stdout)),
        Command::Status(args) => return fleet::finish(args.run(stdout)),
        Command::Uninstall(args) => return fleet::finish(args.run(stdout)),
        Command::Completions(args) => (completions(args.shell), Outcome::Fine),
        Command::Man(args) => {
            std::fs::create_dir_all(&args.folder)?;
            clap_mangen::generate_to(Cli::command(), &args.folder)?;
            (String::new(), Outcome::Fine)
        }
    };
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        // Who reads has seen enough; the outcome is what it is.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(outcome),
        written => Ok(written.map(|()| outcome)?),
    }
}

fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "kubectl-boundary", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

fn compiled(args: &Compile, reader: &mut Reader<'_>, now: Timestamp) -> Result<String, Error> {
    let mut problems = Diagnostics::default();
    let documents = reader.documents(&args.policies, &mut problems);
    let policies = policies::policies(&documents, &mut problems);
    let catalog = policies::catalog(&documents, &mut problems);
    bad_input(problems)?;
    let mut capabilities = Capabilities::of(args.kubernetes);
    if !capabilities.validating {
        return Err(Error::NothingEnforced(args.kubernetes));
    }
    if let Some(api) = args.mutation {
        capabilities.mutating = api.for_version(args.kubernetes)?;
    }
    let mut options = Options::new(capabilities, args.now.unwrap_or(now));
    options.catalog = catalog;
    let compilation = compile(policies.values(), &options);
    let mut documents = Vec::new();
    for object in &compilation.objects {
        documents.push((&object.name, serde_saphyr::to_string(&object.policy)));
        documents.push((&object.name, serde_saphyr::to_string(&object.binding)));
    }
    for object in &compilation.mutations {
        for document in object.documents() {
            documents.push((&object.name, serde_saphyr::to_string(&document)));
        }
    }
    let mut text = String::new();
    for (policy, rules) in &compilation.not_enforced {
        let rules: Vec<_> = rules.iter().map(|rule| rule.as_str()).collect();
        // Writing to a String can't fail.
        let _ = writeln!(
            text,
            "# Policy '{policy}': such a cluster doesn't change Pods, so nothing enforces {}.",
            rules.join(", ")
        );
    }
    for (index, (name, yaml)) in documents.into_iter().enumerate() {
        let yaml = yaml.map_err(|e| Error::Serialize(name.clone(), e.to_string()))?;
        let separator = if index == 0 { "" } else { "---\n" };
        let _ = write!(text, "{separator}{yaml}");
    }
    Ok(text)
}

fn tested(args: Test, reader: &mut Reader<'_>, now: Timestamp) -> Result<(String, Outcome), Error> {
    let mut problems = Diagnostics::default();
    let documents = reader.documents(&args.policies, &mut problems);
    let policies = policies::policies(&documents, &mut problems);
    let catalog = policies::catalog(&documents, &mut problems);
    let before = problems.0.len();
    let resources = reader.documents(&args.resources, &mut problems);
    if resources.is_empty() && problems.0.len() == before {
        problems.file("", "no resource was found in the resources given");
    }
    let namespaces = policies::namespaces(documents.iter().chain(&resources), &mut problems);
    let old_documents = reader.documents(&args.old, &mut problems);
    let old = Old::new(&old_documents, &mut problems);
    bad_input(problems)?;
    let judge = Judge::new(&policies, catalog, namespaces, args.now.unwrap_or(now));
    let asker = Asker {
        boundary: args.boundary,
        user: args.user,
        groups: args.groups,
    };
    let judgements: Vec<_> = (resources.iter())
        .map(|new| judge.judge(new, old.of(new), &asker))
        .collect();
    let has = |verdict| judgements.iter().any(|j| j.verdict == verdict);
    let outcome = if has(Verdict::Unsupported) {
        Outcome::Unsupported
    } else if has(Verdict::Denied) {
        Outcome::Denied
    } else {
        Outcome::Fine
    };
    let text = match args.output {
        Output::Table => table::table(&judgements),
        Output::Json => {
            let json = serde_json::to_string_pretty(&judgements)
                .map_err(|error| Error::Serialize("the list".to_owned(), error.to_string()))?;
            format!("{json}\n")
        }
    };
    Ok((text, outcome))
}

fn bad_input(problems: Diagnostics) -> Result<(), Error> {
    if problems.0.is_empty() {
        Ok(())
    } else {
        Err(Error::Input(problems.0))
    }
}
