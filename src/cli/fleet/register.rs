//! `kubectl boundary register`.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use clap::Args;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::hub::{Hub, HubArgs, client};
use super::member::{self, Token};
use super::{At as _, CONTEXT, MANAGER, REGISTERED, Result, Trouble, duration, identity, until};
use crate::api::is_label_key;
use crate::api::{MemberCluster, is_label_value};
use crate::cli::Outcome;
use crate::fleet::{fingerprint, kubeconfig, permissions};

/// How long the API server of a member may take to act on a new token and new roles.
const CHECK_TIMEOUT: Duration = Duration::from_secs(15);

/// Make a cluster a member: what it needs, a token, the Secret and the `MemberCluster`
#[derive(Debug, Args)]
#[command(after_help = "\
In the member it makes a service account, its roles, and a token; on the hub, the Secret with a \
kubeconfig and the MemberCluster. Nothing is written on the hub before the token was seen to work \
and to suffice.

The token holds until its Secret in the member is deleted, unless --token-duration is given: an \
operator must not lose its members because a day came. --rotate replaces it.

Examples:
  # The cluster of another context
  kubectl boundary register kind-eu-1 --name eu-1 --label region=eu

  # The cluster that the operator runs in
  kubectl boundary register --local --name hub

  # A new token in place of the old, which works until the operator has the new one
  kubectl boundary register kind-eu-1 --name eu-1 --rotate

Exit status: 0, 1 when the operator did not take a new token in time, or 2 when something failed; \
the message says what to do.")]
pub(crate) struct Register {
    /// The context of the member in the kubeconfig
    #[arg(
        value_name = "CONTEXT",
        required_unless_present = "local",
        conflicts_with = "local"
    )]
    member: Option<String>,

    /// The cluster that the operator runs in
    #[arg(long, conflicts_with_all = ["rotate", "server", "token_duration"])]
    local: bool,

    /// The name of the `MemberCluster`
    #[arg(long, value_name = "NAME", value_parser = name)]
    name: String,

    /// A label of the `MemberCluster`, for the selectors of policies
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,

    /// The address of the member as the operator reaches it [default: that of the context]
    #[arg(long, value_name = "URL")]
    server: Option<String>,

    /// Make a token that expires after that time; the API server may shorten it
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    token_duration: Option<Duration>,

    /// Replace the token of a member, without a gap
    #[arg(long)]
    rotate: bool,

    /// How long the operator may take to use a new token
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration)]
    timeout: Duration,

    /// Write nothing; say what would be written
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    hub: HubArgs,
}

fn name(text: &str) -> std::result::Result<String, String> {
    let inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let fine = !text.is_empty() && text.len() <= 63 && text.chars().all(inside);
    if fine && !text.starts_with('-') && !text.ends_with('-') {
        Ok(text.to_owned())
    } else {
        Err("must be a name like eu-1: small letters, digits and -, at most 63".to_owned())
    }
}

fn label(text: &str) -> std::result::Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if is_label_key(key) && (value.is_empty() || is_label_value(value)) => {
            Ok((key.to_owned(), value.to_owned()))
        }
        _ => Err("must be a label like region=eu".to_owned()),
    }
}

impl Register {
    pub(crate) async fn run(self, out: &mut dyn Write) -> Result<Outcome> {
        let hub = self.hub.connect().await?;
        hub.check().await?;
        let known = hub.member(&self.name).await?;
        match (&known, self.rotate) {
            (Some(_), false) => Err(Trouble(format!(
                "there is a MemberCluster {0} already: renew its token by --rotate, or remove it \
                 first by kubectl boundary unregister {0}",
                self.name
            ))),
            (None, true) => Err(Trouble(format!(
                "there is no MemberCluster {}: --rotate is for one that is registered",
                self.name
            ))),
            _ => Ok(()),
        }?;
        let Some(context) = self.member.clone() else {
            return self.local(&hub, out).await;
        };
        let config = hub.contexts.config(Some(&context)).await?;
        let there = client(config)?;
        let version = there.apiserver_version().await;
        let version =
            version.at(|| format!("the cluster of the context {context} does not answer"))?;
        let what = |place: &str| format!("which cluster the {place} is can't be told");
        let hub_identity = identity(&hub.client).await.at(|| what("hub"))?;
        if identity(&there).await.at(|| what("member"))? == hub_identity {
            return Err(Trouble(format!(
                "the context {context} leads to the hub itself: register it by --local --name {}",
                self.name
            )));
        }
        let secret_name = secret_name(&self.name, known.as_ref());
        let Place { own, told } = self.place(&hub, &context)?;
        if self.dry_run {
            for object in member::objects()? {
                writeln!(out, "would apply {} in {context}", member::shown(&object))?;
            }
            writeln!(out, "would make a token in {context}")?;
            writeln!(
                out,
                "would write Secret {}/{secret_name} on the hub",
                hub.namespace
            )?;
            writeln!(out, "would write MemberCluster {} on the hub", self.name)?;
            return Ok(Outcome::Fine);
        }
        writeln!(out, "{context} is Kubernetes {}", version.git_version)?;
        member::apply(&there).await?;
        writeln!(
            out,
            "applied the service account and its roles in {context}"
        )?;
        let before = if self.rotate {
            member::tokens(&there).await?
        } else {
            Vec::new()
        };
        let token = member::token(&there, self.token_duration).await?;
        let done = self.hand_over(&hub, &context, &token, &own, &told, &secret_name, out);
        let kubeconfig = match done.await {
            Ok(kubeconfig) => kubeconfig,
            Err(error) => {
                if let Some(secret) = &token.secret {
                    member::revoke(&there, secret).await?;
                }
                return Err(error);
            }
        };
        if !self.rotate {
            writeln!(
                out,
                "{} is a member; see kubectl boundary status",
                self.name
            )?;
            return Ok(Outcome::Fine);
        }
        if !self.taken(&hub, &kubeconfig).await? {
            writeln!(
                out,
                "the operator does not use the new token after {:?}; the old one goes on to hold. \
                 See whether it runs, then rotate again",
                self.timeout
            )?;
            return Ok(Outcome::Denied);
        }
        for secret in before.iter().filter(|s| Some(*s) != token.secret.as_ref()) {
            member::revoke(&there, secret).await?;
        }
        writeln!(
            out,
            "the operator uses the new token of {}; the old ones are revoked",
            self.name
        )?;
        Ok(Outcome::Fine)
    }

    async fn local(&self, hub: &Hub, out: &mut dyn Write) -> Result<Outcome> {
        if self.dry_run {
            writeln!(out, "would write MemberCluster {} on the hub", self.name)?;
            return Ok(Outcome::Fine);
        }
        self.write_member(hub, json!({"local": {}}), BTreeMap::new())
            .await?;
        writeln!(
            out,
            "{} is a member; see kubectl boundary status",
            self.name
        )?;
        Ok(Outcome::Fine)
    }

    /// How the member is reached, by the context and as the operator is told.
    fn place(&self, hub: &Hub, context: &str) -> Result<Place> {
        let none = || Trouble(format!("the context {context} names no cluster"));
        let cluster = hub.contexts.cluster(context).ok_or_else(none)?;
        if cluster.proxy_url.is_some() && self.server.is_none() {
            return Err(Trouble(format!(
                "the context {context} has a proxy-url, and the operator connects directly: give \
                 the address that it reaches by --server"
            )));
        }
        let mut own = serde_json::Map::new();
        own.insert("server".to_owned(), json!(cluster.server));
        if let Some(name) = &cluster.tls_server_name {
            own.insert("tls-server-name".to_owned(), json!(name));
        }
        if cluster.insecure_skip_tls_verify == Some(true) {
            own.insert("insecure-skip-tls-verify".to_owned(), json!(true));
        }
        let authority = match (
            &cluster.certificate_authority_data,
            &cluster.certificate_authority,
        ) {
            (Some(data), _) => Some(data.clone()),
            (None, Some(path)) => {
                let read = std::fs::read(path);
                let read =
                    read.map_err(|e| Trouble(format!("certificate-authority {path}: {e}")))?;
                Some(BASE64_STANDARD.encode(read))
            }
            (None, None) => None,
        };
        if let Some(authority) = authority {
            own.insert("certificate-authority-data".to_owned(), json!(authority));
        }
        let own = Value::Object(own);
        let mut told = own.clone();
        if let Some(server) = &self.server {
            told["server"] = json!(server);
        }
        Ok(Place { own, told })
    }

    /// Checks a token and writes it to the hub. Gives the kubeconfig.
    #[expect(clippy::too_many_arguments, reason = "each is a thing of its own")]
    async fn hand_over(
        &self,
        hub: &Hub,
        context: &str,
        token: &Token,
        own: &Value,
        told: &Value,
        secret_name: &str,
        out: &mut dyn Write,
    ) -> Result<String> {
        let handed = written(told, &token.text);
        let not_taken = |e| Trouble(format!("the operator would not take the kubeconfig: {e}"));
        kubeconfig::load(handed.as_bytes())
            .await
            .map_err(not_taken)?;
        let own = written(own, &token.text);
        let config = kubeconfig::load(own.as_bytes()).await.map_err(not_taken)?;
        check(&client(config)?).await?;
        writeln!(out, "the token works in {context}, and suffices")?;
        if self.server.is_none() && is_loopback(told) {
            writeln!(
                out,
                "note: the operator will connect to {}; where it runs elsewhere, unregister, and \
                 give the address that it reaches by --server",
                told["server"].as_str().unwrap_or_default()
            )?;
        }
        let secret = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": secret_name, "labels": {REGISTERED: "true"}},
            "stringData": {"value": handed},
        });
        let params = PatchParams::apply(MANAGER).force();
        let applied = hub
            .secrets()
            .patch(secret_name, &params, &Patch::Apply(&secret))
            .await;
        let _: Secret = applied.at(|| {
            format!(
                "the Secret {}/{secret_name} can't be written",
                hub.namespace
            )
        })?;
        if !self.rotate {
            let spec = json!({"kubeconfigSecretRef": {"name": secret_name}});
            let annotations = [(CONTEXT.to_owned(), context.to_owned())].into();
            self.write_member(hub, spec, annotations).await?;
        }
        Ok(handed)
    }

    async fn write_member(
        &self,
        hub: &Hub,
        spec: Value,
        annotations: BTreeMap<String, String>,
    ) -> Result<()> {
        let labels: BTreeMap<_, _> = self.labels.iter().cloned().collect();
        let member = json!({
            "apiVersion": "boundarypolicy.dev/v1alpha1",
            "kind": "MemberCluster",
            "metadata": {"name": self.name, "labels": labels, "annotations": annotations},
            "spec": spec,
        });
        let params = PatchParams::apply(MANAGER).force();
        let applied = hub
            .members()
            .patch(&self.name, &params, &Patch::Apply(&member))
            .await;
        applied
            .map(drop)
            .at(|| format!("the MemberCluster {} can't be written", self.name))
    }

    /// Whether the operator was seen to use a kubeconfig.
    async fn taken(&self, hub: &Hub, kubeconfig: &str) -> Result<bool> {
        let wanted = fingerprint(kubeconfig.as_bytes());
        let taken = until(self.timeout, async || {
            let status = hub
                .member(&self.name)
                .await?
                .and_then(|member| member.status);
            let used = status.and_then(|status| status.credentials);
            Ok((used.as_deref() == Some(wanted.as_str())).then_some(()))
        });
        Ok(taken.await?.is_some())
    }
}

/// How a member is reached: from here, and by the operator.
struct Place {
    own: Value,
    told: Value,
}

fn secret_name(name: &str, known: Option<&MemberCluster>) -> String {
    let reference = known.and_then(|member| member.spec.kubeconfig_secret_ref.as_ref());
    reference.map_or_else(
        || format!("{name}-kubeconfig"),
        |reference| reference.name.clone(),
    )
}

fn is_loopback(cluster: &Value) -> bool {
    let server = cluster["server"].as_str().unwrap_or_default();
    ["://127.", "://localhost", "://[::1]"]
        .iter()
        .any(|host| server.contains(host))
}

/// A kubeconfig with nothing but a cluster and a token.
fn written(cluster: &Value, token: &str) -> String {
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "member", "cluster": cluster}],
        "users": [{"name": "boundary-operator", "user": {"token": token}}],
        "contexts": [{"name": "member", "context": {"cluster": "member", "user": "boundary-operator"}}],
        "current-context": "member",
    });
    format!("{kubeconfig:#}")
}

/// Waits until whoever `client` is may do what the operator does in a member.
async fn check(client: &Client) -> Result<()> {
    let mut last = String::new();
    let found = until(CHECK_TIMEOUT, async || {
        let needed = permissions::in_member(true, true);
        match permissions::lacking(client, CHECK_TIMEOUT, needed).await {
            Ok(lacking) if lacking.is_empty() => return Ok(Some(())),
            Ok(lacking) => last = format!("it lacks {}", permissions::named(&lacking)),
            Err(failure) => last = failure.to_string(),
        }
        Ok(None)
    });
    match found.await? {
        Some(()) => Ok(()),
        None => Err(Trouble(format!(
            "the token of the member does not work after {CHECK_TIMEOUT:?}: {last}"
        ))),
    }
}
