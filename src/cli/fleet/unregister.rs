//! `kubectl boundary unregister`.

use std::io::Write;
use std::time::Duration;

use clap::Args;
use kube::Client;

use super::hub::{self, Hub, HubArgs, client};
use super::{Result, Trouble, duration, member};
use crate::api::MemberCluster;
use crate::cli::Outcome;

/// Take a cluster out of the fleet, and everything out of the cluster
#[derive(Debug, Args)]
#[command(after_help = "\
The operator removes its policies from the member; then the service account, its roles, its tokens \
and its namespaces go, and the Secret on the hub. What `register` did not make stays: that of a \
chart, for one.

Examples:
  kubectl boundary unregister eu-1

  # By a context of another name than at registration
  kubectl boundary unregister eu-1 --member-context admin@eu-1

  # Leave the service account in the member, as where a chart made it
  kubectl boundary unregister eu-1 --keep

Exit status: 0, or 2 when something failed.")]
pub(crate) struct Unregister {
    /// The name of the `MemberCluster`
    #[arg(value_name = "NAME")]
    name: String,

    /// The context of the member [default: that by which it was registered]
    #[arg(long, value_name = "CONTEXT")]
    member_context: Option<String>,

    /// Leave the service account, its roles and its token in the member
    #[arg(long, conflicts_with = "member_context")]
    keep: bool,

    /// How long the operator, and then the member, may take to remove what is there
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration)]
    timeout: Duration,

    /// Remove nothing; say what would be removed
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    hub: HubArgs,
}

impl Unregister {
    pub(crate) async fn run(self, out: &mut dyn Write) -> Result<Outcome> {
        let hub = self.hub.connect().await?;
        let Some(found) = hub.member(&self.name).await? else {
            return Err(Trouble(format!("there is no MemberCluster {}", self.name)));
        };
        let is_local = found.spec.local.is_some();
        let there = if self.keep || is_local {
            None
        } else {
            Some(self.reach(&hub, &found).await?)
        };
        if self.dry_run {
            writeln!(
                out,
                "would remove the operator's policies from {}",
                self.name
            )?;
            if there.is_some() {
                writeln!(
                    out,
                    "would remove the service account and its roles from {}",
                    self.name
                )?;
            }
            writeln!(
                out,
                "would delete MemberCluster {} and its Secret on the hub",
                self.name
            )?;
            return Ok(Outcome::Fine);
        }
        let there = if is_local {
            Some(hub.client.clone())
        } else {
            there
        };
        leave(&hub, &found, there.as_ref(), self.timeout, out).await?;
        Ok(Outcome::Fine)
    }

    async fn reach(&self, hub: &Hub, found: &MemberCluster) -> Result<Client> {
        let name = &self.name;
        let Some(context) = hub::context(found, self.member_context.as_deref()) else {
            return Err(Trouble(format!(
                "{name} was not registered by kubectl boundary: give a context of the member by \
                 --member-context, or leave what is there by --keep"
            )));
        };
        if self.member_context.is_none() && !hub.contexts.has(&context) {
            return Err(Trouble(format!(
                "{name} was registered by the context {context}, which the kubeconfig does not \
                 have: give another one by --member-context, or leave what is there by --keep"
            )));
        }
        let there = client(hub.contexts.config(Some(&context)).await?)?;
        match there.apiserver_version().await {
            Ok(_) => Ok(there),
            Err(error) => Err(Trouble(format!(
                "the cluster of the context {context} does not answer ({}): try again later, or \
                 leave what is there by --keep",
                super::whole(&error)
            ))),
        }
    }
}

/// Takes a member out of the fleet, and what is ours out of it as far as it is reached by `there`.
pub(super) async fn leave(
    hub: &Hub,
    found: &MemberCluster,
    there: Option<&Client>,
    timeout: Duration,
    out: &mut dyn Write,
) -> Result<()> {
    let name = found.metadata.name.as_deref().unwrap_or_default();
    let went = hub.leave(name, timeout).await?;
    if let Some(there) = there {
        member::clear(there).await?;
    }
    if !went {
        let why = if there.is_some() {
            "removed its policies without it"
        } else {
            "its policies stay"
        };
        writeln!(
            out,
            "the operator did not let {name} go within {timeout:?}: {why}"
        )?;
        hub.release(name).await?;
    }
    hub.forget(found).await?;
    if let Some(there) = there {
        member::remove(there, timeout).await?;
    }
    writeln!(out, "{name} is no member any more")?;
    Ok(())
}
