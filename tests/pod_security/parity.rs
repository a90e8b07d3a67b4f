//! The same verdict as the plugin, on many Pods; and the same verdict and message offline.

use std::collections::{BTreeMap, BTreeSet};

use boundary_operator::api::BOUNDARY_LABEL;
use boundary_operator::evaluate::{Evaluator, Kind, Operation, Request};
use control_plane::Version;
use futures::{StreamExt as _, stream};
use serde_json::Value;

use crate::cluster::{Asked, Cluster, PLAIN, Verdict, compiled};
use crate::generate::{Target, pod};

/// Pods that are judged, for each version and level.
const PODS: usize = 5_000;

/// Pods that are judged for a version of the standards that is not that of the cluster.
const PINNED_PODS: usize = 500;

/// Requests at a time.
const IN_FLIGHT: usize = 32;

/// What the plugin and the rule see differently, and why. None.
const DISAGREEMENTS: &[(&str, &str)] = &[];

/// Checks that no Pod breaks alone, and why.
const NEVER_ALONE: &[(&str, &str)] =
    &[("hostProcess", "the API server requires hostNetwork with it")];

/// Fields that an API server of 1.30 drops or overwrites before admission, since their features are
/// off: what is judged offline is what the user wrote.
const DROPPED_BEFORE_1_33: &[&str] = &["hostUsers", "procMount"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v1_30() {
    agrees(Version::V1_30).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v1_34() {
    agrees(Version::V1_34).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v1_37() {
    agrees(Version::V1_37).await;
}

async fn agrees(version: Version) {
    let cluster = Cluster::start(version).await;
    for asked in [Asked::BASELINE, Asked::RESTRICTED] {
        cluster.enforce(asked).await;
        let counts = compare(&cluster, version, asked, PODS).await;
        counts.print(version, asked);
        counts.check(version, asked);
    }
}

/// Versions of the standards between which checks changed, and one that no cluster has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pinned_versions() {
    let version = Version::V1_37;
    let cluster = Cluster::start(version).await;
    for pin in [
        "v1.7", "v1.18", "v1.22", "v1.24", "v1.28", "v1.31", "v1.34", "v1.36", "v1.99",
    ] {
        for level in ["baseline", "restricted"] {
            let asked = Asked {
                level,
                version: Some(pin),
            };
            cluster.enforce(asked).await;
            compare(&cluster, version, asked, PINNED_PODS)
                .await
                .print(version, asked);
        }
    }
}

/// What came out.
#[derive(Default)]
struct Counts {
    admitted: usize,
    denied: usize,
    invalid: usize,
    /// By what the plugin says: Pods that break the check, and those that break nothing else.
    checks: BTreeMap<&'static str, (usize, usize)>,
    /// Pods whose fields the API server dropped.
    dropped: usize,
}

async fn compare(cluster: &Cluster, version: Version, asked: Asked, pods: usize) -> Counts {
    let target = Target {
        restricted: asked.level == "restricted",
        minor: version.minor(),
    };
    let (plugin, rule) = (asked.plugin_namespace(), asked.rule_namespace());
    let judge = Offline::new(asked, version.minor());
    let mut counts = Counts::default();
    let mut disagreements = Vec::new();
    let mut answers = stream::iter(0..)
        .map(|number| {
            let (plugin, rule) = (&plugin, &rule);
            async move {
                let pod = pod(number, target);
                let plugin = cluster.create(plugin, &pod).await;
                let rule = cluster.create(rule, &pod).await;
                // What is judged is what the API server makes of the Pod.
                let judged = if drops(&pod, version) {
                    cluster.send(PLAIN, &pod).await.ok()
                } else {
                    None
                };
                (pod, judged, plugin, rule)
            }
        })
        .buffered(IN_FLIGHT);
    while counts.admitted + counts.denied < pods {
        let (pod, judged, plugin, rule) = answers.next().await.unwrap();
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        let agree = match (&plugin, &rule) {
            (Verdict::Admitted, Verdict::Admitted) => {
                counts.admitted += 1;
                true
            }
            (Verdict::Denied(reasons), Verdict::Denied(said)) => {
                counts.denied += 1;
                let broken = broken(reasons);
                counts.count(&broken);
                names(said, asked, &broken)
            }
            (Verdict::Invalid(_), Verdict::Invalid(_)) => {
                counts.invalid += 1;
                assert!(
                    counts.invalid < 50 + pods / 20,
                    "too many invalid Pods: {plugin:?}\n{pod}"
                );
                continue;
            }
            _ => false,
        };
        if !agree && !DISAGREEMENTS.iter().any(|(listed, _)| *listed == name) {
            disagreements.push(format!("{name}: plugin {plugin:?}, rule {rule:?}\n{pod}"));
        }
        counts.dropped += usize::from(judged.is_some());
        let offline = judge.judge(judged.as_ref().unwrap_or(&pod));
        if offline != rule {
            disagreements.push(format!("{name}: offline {offline:?}, rule {rule:?}\n{pod}"));
        }
        assert!(
            disagreements.len() < 10,
            "{version} {asked:?}\n{}",
            disagreements.join("\n\n")
        );
    }
    assert!(
        disagreements.is_empty(),
        "{version} {asked:?}\n{}",
        disagreements.join("\n\n")
    );
    counts
}

/// Whether an API server of `version` drops or overwrites a field of `pod`.
fn drops(pod: &Value, version: Version) -> bool {
    let text = pod.to_string();
    version.minor() < 33
        && DROPPED_BEFORE_1_33
            .iter()
            .any(|field| text.contains(&format!("\"{field}\":")))
}

/// Judges without an API server.
struct Offline {
    evaluator: Evaluator,
    namespace: String,
    labels: BTreeMap<String, String>,
}

impl Offline {
    fn new(asked: Asked, minor: u16) -> Self {
        Self {
            evaluator: Evaluator::new(&compiled(asked, minor)).unwrap(),
            namespace: asked.rule_namespace(),
            labels: [(BOUNDARY_LABEL.to_owned(), asked.name())].into(),
        }
    }

    fn judge(&self, object: &Value) -> Verdict {
        let request = Request {
            kind: Kind::of(object).unwrap(),
            sub_resource: "",
            operation: Operation::Create,
            object,
            old_object: None,
            namespace: &self.namespace,
            namespace_labels: &self.labels,
            user: "someone",
            groups: &[],
        };
        let findings = self.evaluator.judge(&request).unwrap();
        match findings.into_iter().next() {
            Some(finding) => Verdict::Denied(finding.message),
            None => Verdict::Admitted,
        }
    }
}

/// What the plugin says of a Pod that breaks a check, before its details in parentheses.
const REASONS: &[&str] = &[
    "host namespaces",
    "hostPath volumes",
    "hostPort",
    "probe or lifecycle host",
    "privileged",
    "procMount",
    "non-default capabilities",
    "seLinuxOptions",
    "seccompProfile",
    "forbidden AppArmor profile",
    "forbidden sysctls",
    "hostProcess",
    "allowPrivilegeEscalation != false",
    "unrestricted capabilities",
    "restricted volume types",
    "runAsNonRoot != true",
    "runAsUser=0",
];

/// The checks that the plugin names.
fn broken(said: &str) -> BTreeSet<&'static str> {
    let broken: BTreeSet<_> = REASONS
        .iter()
        .filter(|reason| {
            let plural = format!("{reason}s (");
            let single = format!("{reason} (");
            [": ", "), "].iter().any(|before| {
                said.contains(&format!("{before}{single}"))
                    || said.contains(&format!("{before}{plural}"))
            })
        })
        .copied()
        .collect();
    assert!(!broken.is_empty(), "{said}");
    broken
}

/// Whether our message names the fields of the checks that are `broken`, and no others.
fn names(said: &str, asked: Asked, broken: &BTreeSet<&str>) -> bool {
    let mut named = BTreeSet::new();
    let start = format!("Policy '{}' (PodSecurity) denied ", asked.name());
    for finding in said.split(&start).skip(1) {
        let end = finding.find([':', ' ']).unwrap();
        let reason = match &finding[..end] {
            "hostNetwork" | "hostPID" | "hostIPC" => "host namespaces",
            field if field.starts_with("volumes.") && broken.contains("hostPath volumes") => {
                "hostPath volumes"
            }
            field if field.starts_with("volumes.") => "restricted volume types",
            "ports.hostPort" => "hostPort",
            field if field.rsplit('.').next() == Some("host") => "probe or lifecycle host",
            "securityContext.privileged" => "privileged",
            "securityContext.procMount" => "procMount",
            "securityContext.capabilities.add" if broken.contains("non-default capabilities") => {
                "non-default capabilities"
            }
            "securityContext.capabilities.add" | "securityContext.capabilities.drop" => {
                "unrestricted capabilities"
            }
            field if field.starts_with("securityContext.seLinuxOptions.") => "seLinuxOptions",
            "securityContext.seccompProfile.type" => "seccompProfile",
            _ if finding.starts_with("the seccomp annotation") => "seccompProfile",
            "securityContext.appArmorProfile.type" => "forbidden AppArmor profile",
            "securityContext.sysctls" => "forbidden sysctls",
            "securityContext.windowsOptions.hostProcess" => "hostProcess",
            "securityContext.allowPrivilegeEscalation" => "allowPrivilegeEscalation != false",
            "securityContext.runAsNonRoot" => "runAsNonRoot != true",
            "securityContext.runAsUser" => "runAsUser=0",
            other => panic!("{other}: {finding}"),
        };
        named.insert(reason);
    }
    let mut broken = broken.clone();
    // On the network of the node every port is a host port, which is not said again.
    if said.contains("denied hostNetwork") {
        broken.remove("hostPort");
    }
    // The message says that there is more.
    if said.ends_with(" more.") {
        return named.is_subset(&broken);
    }
    named == broken
}

impl Counts {
    fn count(&mut self, broken: &BTreeSet<&'static str>) {
        for check in broken {
            let (all, alone) = self.checks.entry(check).or_default();
            *all += 1;
            *alone += usize::from(broken.len() == 1);
        }
    }

    fn print(&self, version: Version, asked: Asked) {
        println!(
            "{version} {}: {} Pods agree: {} admitted, {} denied; {} invalid, {} with dropped fields",
            asked.name(),
            self.admitted + self.denied,
            self.admitted,
            self.denied,
            self.invalid,
            self.dropped,
        );
        for (check, (all, alone)) in &self.checks {
            println!("    {check}: {all}, alone {alone}");
        }
    }

    /// About half of the Pods are admitted, and every check is broken, alone too.
    fn check(&self, version: Version, asked: Asked) {
        let all = self.admitted + self.denied;
        assert!(
            self.admitted * 10 > all * 3 && self.admitted * 10 < all * 7,
            "{}",
            self.admitted
        );
        let restricted = asked.level == "restricted";
        for reason in REASONS {
            let (there, alone_too) = match *reason {
                "probe or lifecycle host" => (version >= Version::V1_34, true),
                // Dropped before 1.33.
                "procMount" => (
                    version == Version::V1_34 || version > Version::V1_34 && restricted,
                    true,
                ),
                "hostPath volumes" | "non-default capabilities" => (!restricted, true),
                // With it goes allowPrivilegeEscalation, which `restricted` requires to be false.
                "privileged" => (true, !restricted),
                "allowPrivilegeEscalation != false"
                | "unrestricted capabilities"
                | "restricted volume types"
                | "runAsNonRoot != true"
                | "runAsUser=0" => (restricted, true),
                _ => (true, true),
            };
            let alone_too = alone_too && !NEVER_ALONE.iter().any(|(never, _)| never == reason);
            let (all, alone) = self.checks.get(reason).copied().unwrap_or_default();
            assert_eq!(all > 0, there, "{version} {asked:?} {reason}");
            assert_eq!(
                alone > 0,
                there && alone_too,
                "{version} {asked:?} {reason} alone"
            );
        }
    }
}
