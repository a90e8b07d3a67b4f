//! `kubectl boundary uninstall`.

use std::io::Write;
use std::time::Duration;

use clap::Args;
use kube::api::ListParams;
use kube::{Client, ResourceExt as _};

use super::hub::{self, Hub, HubArgs, client};
use super::unregister::leave;
use super::{At as _, Result, duration, member};
use crate::api::MemberCluster;
use crate::cli::Outcome;
use crate::fleet::kubeconfig;

/// Take everything of the operator out of every member, before the operator goes
#[derive(Debug, Args)]
#[command(after_help = "\
Run it while the operator runs, then `helm uninstall`. Every MemberCluster is deleted; policies stay \
on the hub, and are enforced nowhere. Members that could not be reached, and what stays in those \
whose context is not in the kubeconfig, are listed.

Examples:
  # What would be done
  kubectl boundary uninstall

  kubectl boundary uninstall --yes

Exit status: 0, 1 when something is left in a member, or 2 when something failed.")]
pub(crate) struct Uninstall {
    /// Do it; without it nothing is removed
    #[arg(long)]
    yes: bool,

    /// How long each member may take
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration)]
    timeout: Duration,

    #[command(flatten)]
    hub: HubArgs,
}

/// How far a member can be reached from here.
enum Reach {
    /// By a context of the kubeconfig: everything can be removed.
    Admin(Client),
    /// With the operator's own credentials: policies can be looked at.
    Operator(Client),
    /// Not at all, and why.
    Not(String),
}

impl Uninstall {
    pub(crate) async fn run(self, out: &mut dyn Write) -> Result<Outcome> {
        let hub = self.hub.connect().await?;
        let all = hub.members().list(&ListParams::default()).await;
        let all = all.at(|| "the MemberClusters on the hub can't be listed".to_owned())?;
        let mut left = Vec::new();
        for found in &all.items {
            let name = found.name_any();
            let reach = reach(&hub, found).await?;
            if !self.yes {
                writeln!(out, "would take everything out of {name}{}", limit(&reach))?;
                continue;
            }
            match reach {
                Reach::Admin(there) => {
                    if let Err(trouble) = leave(&hub, found, Some(&there), self.timeout, out).await
                    {
                        left.push(format!("{name}: {trouble}"));
                    }
                }
                Reach::Operator(there) => {
                    // Read before it goes: the Secret goes with it.
                    leave(&hub, found, None, self.timeout, out).await?;
                    let objects = member::left(&there).await;
                    match objects {
                        Ok(objects) => {
                            left.extend(objects.iter().map(|object| format!("{name}: {object}")));
                        }
                        Err(trouble) => left.push(format!("{name}: {trouble}")),
                    }
                    left.push(format!(
                        "{name}: the service account and its roles; remove them by kubectl delete \
                         -f config/rbac/member.yaml, or by helm where the chart made them"
                    ));
                }
                Reach::Not(why) => {
                    leave(&hub, found, None, self.timeout, out).await?;
                    left.push(format!(
                        "{name}: everything, since it can't be reached: {why}"
                    ));
                }
            }
        }
        if !self.yes {
            writeln!(out, "nothing was removed: say --yes to do it")?;
            return Ok(Outcome::Fine);
        }
        if left.is_empty() {
            writeln!(out, "nothing of the operator is left in any member")?;
            return Ok(Outcome::Fine);
        }
        writeln!(out, "left:")?;
        for line in left {
            writeln!(out, "  {line}")?;
        }
        Ok(Outcome::Denied)
    }
}

fn limit(reach: &Reach) -> String {
    match reach {
        Reach::Admin(_) => String::new(),
        Reach::Operator(_) => ", but for its service account: no context leads there".to_owned(),
        Reach::Not(why) => format!(", but it can't be reached: {why}"),
    }
}

async fn reach(hub: &Hub, found: &MemberCluster) -> Result<Reach> {
    if found.spec.local.is_some() {
        return Ok(Reach::Admin(hub.client.clone()));
    }
    let context = hub::context(found, None);
    if let Some(context) = context.filter(|context| hub.contexts.has(context)) {
        let there = client(hub.contexts.config(Some(&context)).await?)?;
        return Ok(match there.apiserver_version().await {
            Ok(_) => Reach::Admin(there),
            Err(error) => Reach::Not(super::whole(&error)),
        });
    }
    let Some(bytes) = hub.kubeconfig(found).await? else {
        return Ok(Reach::Not("its Secret is not there".to_owned()));
    };
    let config = match kubeconfig::load(&bytes).await {
        Ok(mut config) => {
            config.connect_timeout = Some(Duration::from_secs(10));
            config.read_timeout = Some(Duration::from_secs(30));
            config
        }
        Err(error) => return Ok(Reach::Not(error.to_string())),
    };
    let there = client(config)?;
    Ok(match there.apiserver_version().await {
        Ok(_) => Reach::Operator(there),
        Err(error) => Reach::Not(super::whole(&error)),
    })
}
