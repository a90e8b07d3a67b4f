//! The binaries: built once from the Go modules beside this crate, and kept in a cache.
//!
//! The cache is `$BOUNDARY_OPERATOR_CACHE`, else `$XDG_CACHE_HOME/boundary-operator/control-plane`,
//! else `~/.cache/boundary-operator/control-plane`. A binary in the folder `$KUBEBUILDER_ASSETS`
//! is used instead when it says that it is of the version asked for.

use std::env;
use std::fmt;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::process::last_lines;
use crate::{Error, Version};

/// The etcd that all versions use.
const ETCD: &str = "v3.6.16";

/// The helm that installs charts.
const HELM: &str = "v3.22.0";

/// The Go that builds 1.37, which needs a newer one than the rest; `go` fetches it by itself.
const GO_OF_1_37: &str = "1.27.3";

/// The oldest Go that fetches another Go by itself.
const GO_THAT_SWITCHES: &str = "1.21";

const MODULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/go");

/// One of the programs of a control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Binary {
    /// The store: one version of it serves every Kubernetes version.
    Etcd,
    /// The API server.
    KubeApiserver,
    /// The controllers: namespaces, service accounts, garbage collection and so on.
    KubeControllerManager,
}

impl Binary {
    /// Every binary.
    pub const ALL: [Self; 3] = [Self::Etcd, Self::KubeApiserver, Self::KubeControllerManager];

    /// The name of the program.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::KubeApiserver => "kube-apiserver",
            Self::KubeControllerManager => "kube-controller-manager",
        }
    }

    const fn tag(self, version: Version) -> &'static str {
        match self {
            Self::Etcd => ETCD,
            _ => version.tag(),
        }
    }
}

impl fmt::Display for Binary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A program that is used on control planes, of one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tool {
    /// Installs charts.
    Helm,
    /// The command line of Kubernetes, in the newest version.
    Kubectl,
}

impl Tool {
    /// Every tool.
    pub const ALL: [Self; 2] = [Self::Helm, Self::Kubectl];
}

/// The path of the tool, which is built first when it is not in the cache yet.
pub fn ensure_tool(tool: Tool) -> Result<PathBuf, Error> {
    built(&match tool {
        Tool::Helm => Recipe {
            program: "helm",
            tag: HELM,
            estimate: "about 3 minutes",
            module: Path::new(MODULES).join("helm"),
            package: "helm.sh/helm/v3/cmd/helm".to_owned(),
            // The version of Kubernetes that `helm template` takes without a cluster.
            ldflags: format!(
                "-s -w -X helm.sh/helm/v3/internal/version.version={HELM} \
                 -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1 \
                 -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=36 \
                 -X helm.sh/helm/v3/pkg/lint/rules.k8sVersionMajor=1 \
                 -X helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor=36"
            ),
            go: None,
        },
        Tool::Kubectl => Recipe::kubernetes("kubectl", Version::V1_37),
    })
}

/// The path of the binary of this version, which is built first when it is in no place yet.
///
/// Building takes minutes, and says so on stderr. Processes that need the same binary at the
/// same time wait for the one that builds it.
pub fn ensure(binary: Binary, version: Version) -> Result<PathBuf, Error> {
    if let Some(path) = from_assets(binary, version) {
        return Ok(path);
    }
    built(&match binary {
        Binary::Etcd => Recipe {
            program: binary.name(),
            tag: ETCD,
            estimate: "about 1 minute",
            module: Path::new(MODULES).join("etcd"),
            package: ".".to_owned(),
            ldflags: "-s -w".to_owned(),
            go: None,
        },
        _ => Recipe::kubernetes(binary.name(), version),
    })
}

/// How a program is built.
struct Recipe {
    program: &'static str,
    tag: &'static str,
    estimate: &'static str,
    module: PathBuf,
    package: String,
    ldflags: String,
    /// The Go that it needs, where that is not the one of its module.
    go: Option<&'static str>,
}

impl Recipe {
    fn kubernetes(program: &'static str, version: Version) -> Self {
        let (tag, minor) = (version.tag(), version.minor());
        Self {
            program,
            tag,
            estimate: "about 3 minutes",
            module: Path::new(MODULES).join(format!("kubernetes-1.{minor}")),
            package: format!("./{program}"),
            ldflags: format!(
                "-s -w -X k8s.io/component-base/version.gitVersion={tag} \
                 -X k8s.io/component-base/version.gitMajor=1 \
                 -X k8s.io/component-base/version.gitMinor={minor}"
            ),
            go: (version == Version::V1_37).then_some(GO_OF_1_37),
        }
    }
}

/// The path of what the recipe makes, from the cache or built now.
fn built(recipe: &Recipe) -> Result<PathBuf, Error> {
    let cache = cache()?;
    let name = format!("{}-{}", recipe.program, recipe.tag);
    let path = cache.join(&name);
    if path.is_file() {
        return Ok(path);
    }
    fs::create_dir_all(&cache).map_err(Error::file("creating", &cache))?;
    let lock = cache.join(format!(".{name}.lock"));
    let lock = File::create(&lock).map_err(Error::file("creating", &lock))?;
    lock.lock().map_err(Error::io("locking the cache"))?;
    if path.is_file() {
        return Ok(path);
    }
    build(recipe, &path)?;
    Ok(path)
}

fn cache() -> Result<PathBuf, Error> {
    let var = |name| {
        env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    var("BOUNDARY_OPERATOR_CACHE")
        .or_else(|| Some(var("XDG_CACHE_HOME")?.join("boundary-operator/control-plane")))
        .or_else(|| Some(var("HOME")?.join(".cache/boundary-operator/control-plane")))
        .ok_or(Error::NoCache)
        .and_then(|path| std::path::absolute(path).map_err(Error::io("finding the cache")))
}

fn from_assets(binary: Binary, version: Version) -> Option<PathBuf> {
    let path = Path::new(&env::var_os("KUBEBUILDER_ASSETS")?).join(binary.name());
    let path = std::path::absolute(path).ok()?;
    let output = Command::new(&path).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let tag = binary.tag(version).trim_start_matches('v');
    text.split_whitespace()
        .any(|word| word.trim_start_matches('v') == tag)
        .then_some(path)
}

fn build(recipe: &Recipe, path: &Path) -> Result<(), Error> {
    let (program, tag) = (recipe.program, recipe.tag);
    let name = format!("{program} {tag}");
    let toolchain = toolchain(&name, recipe)?;
    let beside = |end: &str| path.with_file_name(format!(".{program}-{tag}.{end}"));
    let unfinished = beside(&format!("{}.tmp", std::process::id()));
    let log = beside("log");
    let file = File::create(&log).map_err(Error::file("creating", &log))?;
    eprintln!("building {name}, {}, once", recipe.estimate);
    let begun = Instant::now();
    let mut go = Command::new("go")
        .args(["build", "-trimpath", "-ldflags", &recipe.ldflags, "-o"])
        .arg(&unfinished)
        .arg(&recipe.package)
        .current_dir(&recipe.module)
        .env("CGO_ENABLED", "0")
        .env("GOTOOLCHAIN", toolchain)
        .env("GOWORK", "off")
        .env_remove("GOOS")
        .env_remove("GOARCH")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(file)
        .spawn()
        .map_err(Error::io("starting go"))?;
    let mut next = Duration::from_secs(15);
    let status = loop {
        if let Some(status) = go.try_wait().map_err(Error::io("waiting for go"))? {
            break status;
        }
        let elapsed = begun.elapsed();
        if elapsed >= next {
            next += Duration::from_secs(15);
            eprintln!("building {name}: {} s", elapsed.as_secs());
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    let output = fs::read(&log).unwrap_or_default();
    let _ = fs::remove_file(&log);
    if !status.success() {
        let _ = fs::remove_file(&unfinished);
        let output = last_lines(&String::from_utf8_lossy(&output), 25);
        return Err(Error::Build { name, output });
    }
    fs::rename(&unfinished, path).map_err(Error::file("renaming", &unfinished))?;
    eprintln!("built {name} in {} s", begun.elapsed().as_secs());
    Ok(())
}

/// What GOTOOLCHAIN has to be, when the `go` on the PATH can build this.
fn toolchain(name: &str, recipe: &Recipe) -> Result<String, Error> {
    let fixed = recipe.go;
    let needed = if fixed.is_some() {
        GO_THAT_SWITCHES.to_owned()
    } else {
        of_module(&recipe.module)?
    };
    let output = Command::new("go")
        .arg("version")
        .current_dir("/")
        .env("GOTOOLCHAIN", "local")
        .output()
        .map_err(|error| match error.kind() {
            ErrorKind::NotFound => Error::GoMissing {
                name: name.to_owned(),
                needed: needed.clone(),
            },
            _ => Error::io("starting go")(error),
        })?;
    let found = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let go = found
        .split_whitespace()
        .find_map(|word| word.strip_prefix("go").filter(|v| !v.is_empty()))
        .map(numbers)
        .unwrap_or_default();
    if go < numbers(&needed) {
        return Err(Error::GoTooOld {
            name: name.to_owned(),
            needed,
            found,
        });
    }
    Ok(match fixed {
        Some(fixed) if go < numbers(fixed) => format!("go{fixed}"),
        _ => "local".to_owned(),
    })
}

/// The `go` line of the module.
fn of_module(module: &Path) -> Result<String, Error> {
    let path = module.join("go.mod");
    let text = fs::read_to_string(&path).map_err(Error::file("reading", &path))?;
    let line = text.lines().find_map(|line| line.strip_prefix("go "));
    Ok(line.unwrap_or_default().trim().to_owned())
}

/// `1.26.8`, `1.27rc1` and so on as something to compare.
fn numbers(version: &str) -> Vec<u32> {
    version
        .split('.')
        .map_while(|part| {
            let end = part
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(part.len());
            part[..end].parse().ok()
        })
        .collect()
}
