//! What is shown: the tables on the hub, and what becomes of workloads in the members.

use std::ffi::OsStr;

use anyhow::{Context as _, ensure};
use boundary_operator::api::{BoundaryPolicy, MemberCluster};
use boundary_operator::cli::{self, Cli};
use clap::Parser as _;
use kube::api::Api;
use serde::Deserialize;
use serde_json::Value;

use crate::cluster::{Answer, Cluster, documents, until};
use crate::members::enforcing;
use crate::root;

/// The longest line of a message.
const WIDTH: usize = 96;

/// The verdict of `kubectl boundary test` about a workload.
#[derive(Debug, Deserialize)]
struct Foretold {
    verdict: String,
    messages: Vec<String>,
}

/// A workload and what is foretold of it.
struct Workload {
    object: Value,
    foretold: Foretold,
}

/// Prints the tables that kubectl would.
pub(crate) async fn tables(hub: &Cluster) -> anyhow::Result<()> {
    let policies = hub.table::<BoundaryPolicy>().await?;
    let clusters = hub.table::<MemberCluster>().await?;
    println!("$ kubectl get boundarypolicies\n{}", policies.print(false));
    println!(
        "$ kubectl get boundarypolicies -o wide\n{}",
        policies.print(true)
    );
    println!("$ kubectl get memberclusters\n{}", clusters.print(false));

    println!("$ kubectl get boundarypolicy no-latest -o yaml    # status.clusters");
    let policies: Api<BoundaryPolicy> = Api::all(hub.client.clone());
    let status = policies.get("no-latest").await?.status;
    for cluster in status.iter().flat_map(|status| &status.clusters) {
        let version = cluster.version.as_deref().unwrap_or("unknown");
        println!("{}: {} ({version})", cluster.name, cluster.state);
        if !cluster.message.is_empty() {
            println!("{}", wrapped(&cluster.message));
        }
    }
    println!();
    Ok(())
}

/// Creates the workloads in every member, and compares what became of them with what is said on
/// the hub and by `kubectl boundary test`.
pub(crate) async fn workloads(hub: &Cluster, members: &[Cluster]) -> anyhow::Result<()> {
    let enforcing = enforcing(hub).await?;
    let workloads = foretold()?;
    println!("$ kubectl create -f examples/workloads    # in each member, as an administrator\n");
    let (mut wrong, mut broken) = (0, 0);
    for Workload { object, foretold } in &workloads {
        println!("{}", name_of(object));
        let mut answers: Vec<(Answer, Vec<&str>)> = Vec::new();
        for member in members {
            let answer = member.create(object, false).await?;
            if enforcing.contains(member.name) {
                wrong += usize::from(!foretold.holds_for(&answer));
            } else {
                wrong += usize::from(answer.refusal.is_some() || !answer.warnings.is_empty());
                broken += usize::from(foretold.verdict != "allowed");
            }
            match answers.iter_mut().find(|(known, _)| *known == answer) {
                Some((_, names)) => names.push(member.name),
                None => answers.push((answer, vec![member.name])),
            }
        }
        for (answer, names) in answers {
            let unenforced = foretold.verdict != "allowed" && answer == Answer::default();
            answer.print(&names.join(", "), unenforced);
        }
        println!();
    }
    ensure!(
        wrong == 0,
        "{wrong} answers are not what the hub and `kubectl boundary test` say"
    );
    let (yes, no): (Vec<_>, Vec<_>) = members
        .iter()
        .map(|member| member.name)
        .partition(|name| enforcing.contains(name));
    println!(
        "{} did with {} workloads as `kubectl boundary test` foretells.",
        yes.join(" and "),
        workloads.len()
    );
    println!(
        "{} took {broken} that break a rule, as the tables above say of it.",
        no.join(" and ")
    );
    Ok(())
}

/// Waits until the API servers act on the policies that they have taken: that takes them up to a
/// second or two, and the operator does not look yet.
pub(crate) async fn acting(hub: &Cluster, members: &[Cluster]) -> anyhow::Result<()> {
    let enforcing = enforcing(hub).await?;
    for member in members {
        // What the tables said must be so: all that can enforce policies do.
        let version = member.plane.version();
        ensure!(
            enforcing.contains(member.name) == (version.minor() >= 30),
            "{} ({version}) is not in the state that it should be in",
            member.name
        );
    }
    let workloads = foretold()?;
    for member in members.iter().filter(|m| enforcing.contains(m.name)) {
        until(
            &format!("{} acts on its policies", member.name),
            async || {
                for Workload { object, foretold } in &workloads {
                    if !foretold.holds_for(&member.create(object, true).await?) {
                        return Ok(None);
                    }
                }
                Ok(Some(()))
            },
        )
        .await?;
    }
    Ok(())
}

/// The workloads, each with its verdict without a cluster.
fn foretold() -> anyhow::Result<Vec<Workload>> {
    let folder = root("examples/workloads");
    let arguments: [&OsStr; 8] = [
        "kubectl-boundary".as_ref(),
        "test".as_ref(),
        "--policies".as_ref(),
        &root("examples/policies").into_os_string(),
        "--resources".as_ref(),
        folder.as_os_str(),
        "--output".as_ref(),
        "json".as_ref(),
    ];
    let mut json = Vec::new();
    let now = jiff::Timestamp::now();
    cli::run(
        Cli::parse_from(arguments),
        &mut std::io::empty(),
        &mut json,
        now,
    )
    .context("examples/workloads can't be judged")?;
    let verdicts: Vec<Foretold> = serde_json::from_slice(&json)?;
    let objects = documents(&folder)?;
    ensure!(objects.len() == verdicts.len(), "a workload has no verdict");
    let workloads = objects.into_iter().zip(verdicts);
    let workloads = workloads.map(|(object, foretold)| Workload { object, foretold });
    Ok(workloads.collect())
}

impl Foretold {
    /// Whether the API server said just that.
    fn holds_for(&self, answer: &Answer) -> bool {
        let said = |text: &str| self.messages.iter().all(|message| text.contains(message));
        match (self.verdict.as_str(), &answer.refusal) {
            ("allowed", None) => answer.warnings.is_empty(),
            ("warned", None) => !answer.warnings.is_empty() && said(&answer.warnings.join("\n")),
            ("denied", Some(refusal)) => {
                said(&format!("{refusal}\n{}", answer.warnings.join("\n")))
            }
            _ => false,
        }
    }
}

impl Answer {
    fn print(&self, members: &str, unenforced: bool) {
        let verdict = match (&self.refusal, self.warnings.is_empty()) {
            (Some(_), _) => "refused",
            (None, false) => "admitted with a warning",
            (None, true) if unenforced => "admitted, though it breaks a rule",
            (None, true) => "admitted",
        };
        println!("  {members}: {verdict}");
        for text in self.warnings.iter().chain(&self.refusal) {
            println!("{}", wrapped(text));
        }
    }
}

fn name_of(object: &Value) -> String {
    let text = |pointer| object.pointer(pointer).and_then(Value::as_str);
    let [kind, namespace, name] =
        ["/kind", "/metadata/namespace", "/metadata/name"].map(|p| text(p).unwrap_or_default());
    format!("{kind} {namespace}/{name}")
}

/// The text in lines that are not too long, each after six blanks.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        if let Some(line) = lines.last_mut() {
            if line.is_empty() {
                line.push_str(word);
                continue;
            }
            if line.chars().count() + 1 + word.chars().count() <= WIDTH - 6 {
                line.push(' ');
                line.push_str(word);
                continue;
            }
        }
        lines.push(word.to_owned());
    }
    let lines: Vec<_> = lines.iter().map(|line| format!("      {line}")).collect();
    lines.join("\n")
}
