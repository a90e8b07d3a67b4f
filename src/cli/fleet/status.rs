//! `kubectl boundary status`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write};
use std::time::Duration;

use clap::{Args, ValueEnum};
use kube::ResourceExt as _;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use serde::Serialize;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::hub::{Hub, HubArgs};
use super::{At as _, POLL, Result, Trouble, duration, is_absent};
use crate::api::{
    BoundaryPolicy, BoundaryPolicyStatus, ClusterState, ClusterStatus, MemberCluster,
};
use crate::cli::Outcome;
use crate::cli::input::printable;

/// Show where policies are enforced
#[derive(Debug, Args)]
#[command(after_help = "\
A row for each policy, a column for each member cluster: `-` where a policy is not for a cluster. \
Below, why a policy is not enforced where it is not.

Examples:
  kubectl boundary status
  kubectl boundary status trusted-registries --watch

  # In a script: wait until everything is enforced everywhere
  kubectl boundary status --wait --timeout 2m

Exit status: 0 when every policy shown is Ready, 1 when one is not (with --wait: not in time), 2 when \
something failed.")]
pub(crate) struct Status {
    /// The policy [default: all]
    #[arg(value_name = "POLICY")]
    policy: Option<String>,

    /// How it is printed
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,

    /// Print it again whenever it changes, until interrupted
    #[arg(short, long, conflicts_with = "wait")]
    watch: bool,

    /// Wait until every policy is Ready
    #[arg(long)]
    wait: bool,

    /// How long to wait
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    timeout: Duration,

    #[command(flatten)]
    hub: HubArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Lines for people
    Table,
    /// For programs
    Json,
    /// For programs
    Yaml,
}

/// Everything that is shown.
#[derive(Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown {
    clusters: Vec<Cluster>,
    policies: Vec<Policy>,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Cluster {
    name: String,
    version: Option<String>,
    ready: bool,
    reason: String,
    message: String,
    /// Whether the operator has told of it as it is now.
    current: bool,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Policy {
    name: String,
    boundary: String,
    action: String,
    ready: bool,
    reason: String,
    message: String,
    /// Whether the status is about the policy as it is now.
    current: bool,
    clusters: Vec<ClusterStatus>,
}

impl Shown {
    fn is_ready(&self) -> bool {
        self.policies.iter().all(|p| p.ready && p.current)
    }

    /// Ready, and the operator knows every member, so that it stays so.
    fn is_settled(&self) -> bool {
        self.is_ready() && self.clusters.iter().all(|cluster| cluster.current)
    }
}

impl Status {
    pub(crate) async fn run(self, out: &mut dyn Write) -> Result<Outcome> {
        let hub = self.hub.connect().await?;
        let colour = self.output == Output::Table
            && std::io::stdout().is_terminal()
            && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let end = Instant::now() + self.timeout;
        let mut printed = None;
        loop {
            let shown = self.look(&hub).await?;
            if self.watch {
                if printed.as_ref() != Some(&shown) {
                    out.write_all(self.text(&shown, colour)?.as_bytes())?;
                    writeln!(out)?;
                    out.flush()?;
                    printed = Some(shown);
                }
            } else {
                let ready = if self.wait {
                    shown.is_settled()
                } else {
                    shown.is_ready()
                };
                if ready || !self.wait || Instant::now() >= end {
                    out.write_all(self.text(&shown, colour)?.as_bytes())?;
                    return Ok(if ready {
                        Outcome::Fine
                    } else {
                        Outcome::Denied
                    });
                }
            }
            sleep(POLL).await;
        }
    }

    async fn look(&self, hub: &Hub) -> Result<Shown> {
        let resource = ApiResource::erase::<BoundaryPolicy>(&());
        let api: Api<DynamicObject> = Api::all_with(hub.client.clone(), &resource);
        let listed = match api.list(&ListParams::default()).await {
            Err(error) if is_absent(&error) => {
                return Err(Trouble::new(
                    "the cluster does not know BoundaryPolicies: choose the hub by --context",
                ));
            }
            listed => listed.at(|| "the BoundaryPolicies can't be listed".to_owned())?,
        };
        let members = hub.members().list(&ListParams::default()).await;
        let members = members.at(|| "the MemberClusters can't be listed".to_owned())?;
        let mut policies: Vec<_> = listed.iter().map(policy).collect();
        policies.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(name) = &self.policy {
            policies.retain(|policy| policy.name == *name);
            if policies.is_empty() {
                return Err(Trouble(format!("there is no BoundaryPolicy {name}")));
            }
        }
        let mut clusters: Vec<_> = members.iter().map(cluster).collect();
        clusters.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Shown { clusters, policies })
    }

    fn text(&self, shown: &Shown, colour: bool) -> Result<String> {
        match self.output {
            Output::Table => Ok(table(shown, colour)),
            Output::Json => serde_json::to_string_pretty(shown)
                .map(|text| text + "\n")
                .map_err(|e| Trouble(e.to_string())),
            Output::Yaml => serde_saphyr::to_string(shown).map_err(|e| Trouble(e.to_string())),
        }
    }
}

fn policy(object: &DynamicObject) -> Policy {
    let text = |path: &str| {
        let value = object.data.pointer(path).and_then(Value::as_str);
        value.unwrap_or_default().to_owned()
    };
    let status: Option<BoundaryPolicyStatus> =
        (object.data.get("status").cloned()).and_then(|status| serde_json::from_value(status).ok());
    let status = status.unwrap_or_default();
    let ready = status.conditions.iter().find(|c| c.type_ == "Ready");
    Policy {
        name: object.name_any(),
        boundary: text("/spec/boundary"),
        action: text("/spec/action"),
        ready: ready.is_some_and(|c| c.status == "True"),
        reason: ready.map_or_else(|| "NotSeen".to_owned(), |c| c.reason.clone()),
        message: ready.map_or_else(
            || "the operator has not told of it yet: see whether it runs".to_owned(),
            |c| c.message.clone(),
        ),
        current: status.observed_generation == object.metadata.generation,
        clusters: status.clusters,
    }
}

fn cluster(member: &MemberCluster) -> Cluster {
    let status = member.status.clone().unwrap_or_default();
    let ready = status.conditions.iter().find(|c| c.type_ == "Ready");
    Cluster {
        name: member.name_any(),
        version: status.version,
        ready: ready.is_some_and(|c| c.status == "True"),
        reason: ready.map_or_else(|| "NotSeen".to_owned(), |c| c.reason.clone()),
        message: ready.map(|c| c.message.clone()).unwrap_or_default(),
        current: status.observed_generation == member.metadata.generation
            && ready.is_some_and(|c| c.status != "Unknown"),
    }
}

/// The colour of a state, as a terminal takes it.
fn paint(text: &str, colour: bool) -> String {
    let code = match text.trim() {
        _ if !colour => return text.to_owned(),
        "Enforced" | "True" => "32",
        "Installed" | "Pending" => "33",
        "-" | "" => "2",
        _ => "31",
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

fn table(shown: &Shown, colour: bool) -> String {
    if shown.policies.is_empty() {
        return format!(
            "No BoundaryPolicies; {} member clusters.\n",
            shown.clusters.len()
        );
    }
    // A policy can tell of a cluster that has just gone.
    let mut names: BTreeSet<&str> = shown.clusters.iter().map(|c| c.name.as_str()).collect();
    for policy in &shown.policies {
        names.extend(policy.clusters.iter().map(|c| c.name.as_str()));
    }
    let mut rows = vec![
        ["POLICY", "BOUNDARY", "ACTION", "READY"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows[0].extend(names.iter().map(|name| printable(name)));
    for policy in &shown.policies {
        let states: BTreeMap<_, _> = policy
            .clusters
            .iter()
            .map(|c| (c.name.as_str(), c.state))
            .collect();
        let ready = match (policy.ready, policy.current) {
            (_, false) => "Unknown",
            (true, _) => "True",
            (false, _) => "False",
        };
        let mut row = vec![
            printable(&policy.name),
            printable(&policy.boundary),
            printable(&policy.action),
            ready.to_owned(),
        ];
        row.extend(names.iter().map(|name| {
            let state = states.get(name).copied().map(ClusterState::as_str);
            state.unwrap_or("-").to_owned()
        }));
        rows.push(row);
    }
    let columns = rows[0].len();
    let widths: Vec<_> = (0..columns)
        .map(|column| {
            rows.iter()
                .map(|row| row[column].chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            let padded = if column + 1 == columns {
                cell.clone()
            } else {
                format!("{cell:width$}  ")
            };
            // The states, and Ready.
            line += &paint(&padded, colour && index > 0 && column >= 3);
        }
        text += &line;
        text.push('\n');
    }
    let why = why(shown);
    if !why.is_empty() {
        text.push('\n');
        text += &why;
    }
    text
}

/// Why policies are not enforced where they are not.
fn why(shown: &Shown) -> String {
    let mut text = String::new();
    for policy in &shown.policies {
        let name = printable(&policy.name);
        let told = policy
            .clusters
            .iter()
            .filter(|c| c.state != ClusterState::Enforced);
        let mut any = false;
        for cluster in told {
            any = true;
            // Writing to a String can't fail.
            let _ = writeln!(
                text,
                "{name} in {}: {} ({}): {}",
                printable(&cluster.name),
                cluster.state,
                printable(&cluster.reason),
                printable(&cluster.message)
            );
        }
        let ready = policy.ready && policy.current;
        if !any && !ready {
            let _ = writeln!(
                text,
                "{name}: {}: {}",
                printable(&policy.reason),
                printable(&policy.message)
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown() -> Shown {
        let policy = |name: &str, clusters: &str| -> Policy {
            let object: DynamicObject = serde_saphyr::from_str(&format!(
                "apiVersion: boundarypolicy.dev/v1alpha1\nkind: BoundaryPolicy\n\
                 metadata: {{name: {name}, generation: 2}}\nspec: {{boundary: web, action: Deny}}\n\
                 status: {{observedGeneration: 2, clusters: [{clusters}], conditions: []}}"
            ))
            .unwrap();
            super::policy(&object)
        };
        let entry = |name: &str, state: &str| {
            format!(
                "{{name: {name}, state: {state}, reason: R, message: \"a\\u001b[2J\", \
                 lastTransitionTime: 2026-01-01T00:00:00Z}}"
            )
        };
        Shown {
            clusters: Vec::new(),
            policies: vec![
                policy(
                    "one",
                    &format!(
                        "{}, {}",
                        entry("eu-1", "Enforced"),
                        entry("old", "Unsupported")
                    ),
                ),
                policy("two", &entry("eu-1", "Pending")),
            ],
        }
    }

    #[test]
    fn the_matrix_has_a_row_for_each_policy_and_a_column_for_each_cluster() {
        let text = table(&shown(), false);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "POLICY  BOUNDARY  ACTION  READY  eu-1      old");
        assert_eq!(
            lines[1],
            "one     web       Deny    False  Enforced  Unsupported"
        );
        assert_eq!(lines[2], "two     web       Deny    False  Pending   -");
        assert_eq!(lines[4], "one in old: Unsupported (R): a\\u{1b}[2J");
        assert_eq!(lines.len(), 6);
    }

    #[test]
    fn colours_are_for_terminals_alone() {
        assert!(!table(&shown(), false).contains('\x1b'));
        let text = table(&shown(), true);
        assert!(text.contains("\x1b[32mEnforced"), "{text:?}");
        assert!(text.contains("\x1b[31mUnsupported"), "{text:?}");
        assert!(!text.contains("\x1b[2J"), "{text:?}");
    }

    #[test]
    fn a_status_of_before_is_not_ready() {
        let mut shown = shown();
        for policy in &mut shown.policies {
            policy.ready = true;
        }
        assert!(shown.is_ready());
        shown.policies[0].current = false;
        assert!(!shown.is_ready());
    }
}
