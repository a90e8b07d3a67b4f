//! The cluster Secrets of Argo CD: what they say of a cluster, and which `MemberClusters` there are
//! to be for them. Pure.
//!
//! The format: <https://argo-cd.readthedocs.io/en/stable/operator-manual/declarative-setup/#clusters>.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use kube::api::ObjectMeta;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::api::{ArgocdSecretRef, ClusterState, MemberCluster, MemberClusterSpec};
use crate::compile::{MANAGED_BY, hash};
use crate::fleet::{Source, Verdict};

/// The label that says that a Secret is one of a cluster.
pub(crate) const SECRETS: &str = "argocd.argoproj.io/secret-type=cluster";

/// The labels and annotations that are Argo CD's own.
const ARGOCD: &str = "argocd.argoproj.io/";

/// The label of a `MemberCluster` that the operator made itself.
pub(crate) const DISCOVERED: (&str, &str) = ("boundarypolicy.dev/discovered-from", "argocd");

/// The address under which Argo CD knows the cluster that it runs in.
const IN_CLUSTER: &str = "https://kubernetes.default.svc";

/// The longest name of an object.
const MAX_NAME: usize = 253;

/// `config` of a cluster Secret, as far as it is of use here.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(clippy::struct_field_names, reason = "they are Argo CD's names")]
struct Config {
    username: String,
    password: String,
    bearer_token: String,
    tls_client_config: TlsClientConfig,
    aws_auth_config: Option<Value>,
    exec_provider_config: Option<Value>,
    proxy_url: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct TlsClientConfig {
    insecure: bool,
    server_name: String,
    cert_data: String,
    key_data: String,
    ca_data: String,
}

/// How the cluster of a Secret is reached.
pub(crate) fn source(secret: &Secret) -> Source {
    read(secret).unwrap_or_else(Source::Unusable)
}

fn read(secret: &Secret) -> Result<Source, Verdict> {
    let server = text(secret, "server")?;
    let config: Config = match text(secret, "config") {
        Ok(config) => serde_json::from_str(&config).map_err(|_| {
            // The cause is left out: it may quote a credential.
            invalid(
                secret,
                "its key config is not JSON of the shape that Argo CD takes",
            )
        })?,
        Err(_) if is_here(&server) => Config::default(),
        Err(missing) => return Err(missing),
    };
    let tls = &config.tls_client_config;
    let unsupported = [
        (config.aws_auth_config.is_some(), "awsAuthConfig"),
        (config.exec_provider_config.is_some(), "execProviderConfig"),
        (
            !config.username.is_empty() || !config.password.is_empty(),
            "username and password",
        ),
    ];
    if let Some((_, what)) = unsupported.iter().find(|(is_set, _)| *is_set) {
        return Err(unsupported_auth(
            secret,
            &format!("has {what} in its config"),
        ));
    }
    let has_credentials = !config.bearer_token.is_empty() || !tls.cert_data.is_empty();
    if is_here(&server) && !has_credentials {
        return Ok(Source::Local);
    }
    if !has_credentials {
        return Err(unsupported_auth(secret, "has no credentials in its config"));
    }
    let set = |value: &str| (!value.is_empty()).then(|| value.to_owned());
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "argocd",
        "contexts": [{"name": "argocd", "context": {"cluster": "argocd", "user": "argocd"}}],
        "clusters": [{"name": "argocd", "cluster": without_nulls(json!({
            "server": server,
            "insecure-skip-tls-verify": tls.insecure.then_some(true),
            "certificate-authority-data": set(&tls.ca_data),
            "tls-server-name": set(&tls.server_name),
            "proxy-url": set(&config.proxy_url),
        }))}],
        "users": [{"name": "argocd", "user": without_nulls(json!({
            "token": set(&config.bearer_token),
            "client-certificate-data": set(&tls.cert_data),
            "client-key-data": set(&tls.key_data),
        }))}],
    });
    Ok(Source::Kubeconfig(kubeconfig.to_string().into_bytes()))
}

fn is_here(server: &str) -> bool {
    server.trim_end_matches('/').trim_end_matches(":443") == IN_CLUSTER
}

fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => fields.into_iter().filter(|(_, v)| !v.is_null()).collect(),
        value => value,
    }
}

fn text(secret: &Secret, key: &str) -> Result<String, Verdict> {
    let value = secret.data.iter().flatten().find(|(name, _)| *name == key);
    let (_, value) = value.ok_or_else(|| invalid(secret, &format!("it has no key {key}")))?;
    let text = String::from_utf8(value.0.clone())
        .map_err(|_| invalid(secret, &format!("its key {key} is not UTF-8 text")))?;
    Ok(text.trim().to_owned())
}

fn invalid(secret: &Secret, what: &str) -> Verdict {
    let text = format!(
        "the cluster Secret {} of Argo CD can't be used: {what}",
        secret.name_any()
    );
    Verdict::new(ClusterState::Unreachable, "InvalidArgocdSecret", text)
}

fn unsupported_auth(secret: &Secret, what: &str) -> Verdict {
    let text = format!(
        "the cluster Secret {} of Argo CD {what}: the operator takes bearerToken, or certData and \
         keyData; make a MemberCluster with a kubeconfig for the cluster instead",
        secret.name_any()
    );
    Verdict::new(ClusterState::Unreachable, "UnsupportedAuth", text)
}

/// What there is to do so that there is a `MemberCluster` for each cluster Secret.
#[derive(Debug, PartialEq)]
pub(crate) enum Change {
    /// There is none yet.
    Create(Box<MemberCluster>),
    /// Its labels are not those of the Secret: the labels that it is to have, `None` for those that
    /// go.
    Label(String, BTreeMap<String, Option<String>>),
    /// Its Secret is gone.
    Delete(String),
    /// Its name is that of a `MemberCluster` which someone else made, and which is for another
    /// cluster.
    Taken {
        /// The metadata of that one.
        by: Box<ObjectMeta>,
        /// The name of the Secret.
        secret: String,
    },
}

/// Plans the `MemberClusters` of all `secrets`, where `members` are there.
pub(crate) fn changes(secrets: &[&Secret], members: &[MemberCluster]) -> Vec<Change> {
    let mut sorted = secrets.to_vec();
    sorted.sort_by_key(|secret| secret.name_any());
    let by_secret = |secret: &str| {
        let mut members = members.iter();
        members.find(|member| refers(member) == Some(secret))
    };
    let mut changes = Vec::new();
    let mut names = BTreeSet::new();
    for secret in sorted {
        let wanted = member(secret);
        if let Some(there) = by_secret(&secret.name_any()) {
            if is_discovered(there) && there.metadata.deletion_timestamp.is_none() {
                let labels = relabel(there, &wanted);
                if !labels.is_empty() {
                    changes.push(Change::Label(there.name_any(), labels));
                }
            }
            continue;
        }
        let name = wanted.name_any();
        let mut same = members.iter().filter(|member| member.name_any() == name);
        if let Some(there) = same.next() {
            // One of ours that is just leaving makes room.
            if there.metadata.deletion_timestamp.is_none() {
                changes.push(Change::Taken {
                    by: Box::new(there.metadata.clone()),
                    secret: secret.name_any(),
                });
            }
        } else if names.insert(name) {
            changes.push(Change::Create(Box::new(wanted)));
        }
    }
    let present: BTreeSet<_> = secrets.iter().map(|secret| secret.name_any()).collect();
    let gone = members.iter().filter(|member| {
        is_discovered(member)
            && member.metadata.deletion_timestamp.is_none()
            && refers(member).is_some_and(|secret| !present.contains(secret))
    });
    changes.extend(gone.map(|member| Change::Delete(member.name_any())));
    changes
}

fn refers(member: &MemberCluster) -> Option<&str> {
    let reference = member.spec.argocd_secret_ref.as_ref()?;
    Some(&reference.name)
}

fn is_discovered(member: &MemberCluster) -> bool {
    member.labels().get(DISCOVERED.0).map(String::as_str) == Some(DISCOVERED.1)
}

/// The `MemberCluster` for a cluster Secret, with its labels so that `spec.clusters.selector` finds
/// them.
fn member(secret: &Secret) -> MemberCluster {
    let named = text(secret, "name").unwrap_or_default();
    let spec = MemberClusterSpec {
        argocd_secret_ref: Some(ArgocdSecretRef {
            name: secret.name_any(),
        }),
        ..MemberClusterSpec::default()
    };
    let fallback = secret.name_any();
    let mut member = MemberCluster::new(
        &name(if named.is_empty() { &fallback } else { &named }),
        spec,
    );
    let theirs = secret.labels().iter();
    let theirs = theirs.filter(|(key, _)| !key.starts_with(ARGOCD) && *key != MANAGED_BY.0);
    let mut labels: BTreeMap<_, _> = theirs.map(|(k, v)| (k.clone(), v.clone())).collect();
    for (key, value) in [MANAGED_BY, DISCOVERED] {
        labels.insert(key.to_owned(), value.to_owned());
    }
    member.metadata.labels = Some(labels);
    member
}

/// A name for an object, from one that may be anything. What had to be changed ends in a hash, so
/// that two clusters never get the same.
fn name(named: &str) -> String {
    let lower = named.chars().map(|c| match c {
        'a'..='z' | '0'..='9' | '-' | '.' => c,
        _ => '-',
    });
    let lower: String = lower.collect();
    let plain = lower == named
        && named.len() <= MAX_NAME
        && named
            .split('.')
            .all(|part| !part.is_empty() && !part.starts_with('-') && !part.ends_with('-'));
    if plain {
        return lower;
    }
    let parts = lower.split('.').map(|part| part.trim_matches('-'));
    let parts: Vec<_> = parts.filter(|part| !part.is_empty()).collect();
    let mut start: String = parts.join(".").chars().take(MAX_NAME - 20).collect();
    start = start.trim_matches(['-', '.']).to_owned();
    let hash = hash(named.as_bytes());
    if start.is_empty() {
        format!("cluster-{hash}")
    } else {
        format!("{start}-{hash}")
    }
}

fn relabel(there: &MemberCluster, wanted: &MemberCluster) -> BTreeMap<String, Option<String>> {
    let (have, want) = (there.labels(), wanted.labels());
    let set = want
        .iter()
        .filter(|(key, value)| have.get(*key) != Some(value));
    let mut labels: BTreeMap<_, _> = set
        .map(|(key, value)| (key.clone(), Some(value.clone())))
        .collect();
    labels.extend(
        have.keys()
            .filter(|key| !want.contains_key(*key))
            .map(|key| (key.clone(), None)),
    );
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(name: &str, data: &[(&str, &str)]) -> Secret {
        let data: BTreeMap<_, _> = data.iter().copied().collect();
        let mut secret: Secret = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {
                "argocd.argoproj.io/secret-type": "cluster", "region": "eu",
            }},
        }))
        .unwrap();
        let bytes = |v: &str| k8s_openapi::ByteString(v.as_bytes().to_vec());
        secret.data = Some(
            data.into_iter()
                .map(|(k, v)| (k.to_owned(), bytes(v)))
                .collect(),
        );
        secret
    }

    fn with_config(config: &str) -> Secret {
        secret(
            "eu-1",
            &[
                ("name", "eu-1"),
                ("server", "https://eu-1.example:6443"),
                ("config", config),
            ],
        )
    }

    fn reason(secret: &Secret) -> String {
        match source(secret) {
            Source::Unusable(verdict) => format!("{}: {}", verdict.reason, verdict.message),
            Source::Local => "local".to_owned(),
            Source::Kubeconfig(_) => "kubeconfig".to_owned(),
        }
    }

    #[tokio::test]
    async fn a_token_and_its_authority_become_a_way_there() {
        let config = r#"{"bearerToken": "to\"ken", "tlsClientConfig": {"insecure": false, "serverName": "eu.example"}}"#;
        let Source::Kubeconfig(bytes) = source(&with_config(config)) else {
            panic!("no way");
        };
        let config = crate::fleet::kubeconfig::load(&bytes).await.unwrap();
        assert_eq!(config.cluster_url, "https://eu-1.example:6443/");
        assert_eq!(config.tls_server_name.as_deref(), Some("eu.example"));
        assert!(!config.accept_invalid_certs);
    }

    #[rstest::rstest]
    #[case(
        r#"{"awsAuthConfig": {"clusterName": "x"}, "bearerToken": "t"}"#,
        "UnsupportedAuth",
        "awsAuthConfig"
    )]
    #[case(
        r#"{"execProviderConfig": {"command": "argocd-k8s-auth"}}"#,
        "UnsupportedAuth",
        "execProviderConfig"
    )]
    #[case(
        r#"{"username": "admin", "password": "s3cret"}"#,
        "UnsupportedAuth",
        "username and password"
    )]
    #[case("{}", "UnsupportedAuth", "no credentials")]
    #[case(
        r#"{"bearerToken": "s3cret""#,
        "InvalidArgocdSecret",
        "its key config is not JSON"
    )]
    #[case(
        r#"{"bearerToken": 7}"#,
        "InvalidArgocdSecret",
        "its key config is not JSON"
    )]
    fn what_can_not_be_used_is_told_without_a_secret(
        #[case] config: &str,
        #[case] of: &str,
        #[case] says: &str,
    ) {
        let told = reason(&with_config(config));
        assert!(told.starts_with(of) && told.contains(says), "{told}");
        assert!(!told.contains("s3cret"), "{told}");
    }

    #[test]
    fn the_cluster_that_argo_cd_runs_in_is_the_local_one() {
        let here = [
            ("name", "in-cluster"),
            ("server", "https://kubernetes.default.svc"),
        ];
        assert_eq!(reason(&secret("here", &here)), "local");
        let told = reason(&secret("bad", &[("name", "x")]));
        assert!(told.contains("it has no key server"), "{told}");
    }

    #[test]
    fn there_is_a_member_for_each_secret_and_none_without() {
        let [one, two] = [with_config("{}"), secret("two", &[("name", "Two_2")])];
        let made = changes(&[&one, &two], &[]);
        let members: Vec<_> = made
            .iter()
            .map(|change| match change {
                Change::Create(member) => (**member).clone(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(members[0].name_any(), "eu-1");
        assert_eq!(members[0].labels()["region"], "eu");
        assert!(
            !members[0]
                .labels()
                .contains_key("argocd.argoproj.io/secret-type")
        );
        assert!(
            members[1].name_any().starts_with("wo-2-"),
            "{}",
            members[1].name_any()
        );
        assert_eq!(changes(&[&one, &two], &members), []);

        let mut moved = one.clone();
        moved
            .labels_mut()
            .insert("region".to_owned(), "us".to_owned());
        let labels = BTreeMap::from([("region".to_owned(), Some("us".to_owned()))]);
        let relabelled = Change::Label("eu-1".to_owned(), labels);
        assert_eq!(changes(&[&moved, &two], &members), [relabelled]);
        assert_eq!(
            changes(&[&one], &members),
            [Change::Delete(members[1].name_any())]
        );
    }

    #[test]
    fn what_someone_else_made_is_left_alone() {
        let mut theirs = MemberCluster::new("eu-1", MemberClusterSpec::default());
        let one = with_config("{}");
        let taken = changes(&[&one], std::slice::from_ref(&theirs));
        assert!(matches!(&taken[..], [Change::Taken { secret, .. }] if secret == "eu-1"));
        // One that refers to the Secret itself is as good, and is not deleted with it.
        theirs.spec.argocd_secret_ref = Some(ArgocdSecretRef {
            name: "eu-1".to_owned(),
        });
        assert_eq!(changes(&[&one], std::slice::from_ref(&theirs)), []);
        assert_eq!(changes(&[], &[theirs]), []);
    }

    #[rstest::rstest]
    #[case("eu-1.example", true)]
    #[case("EU 1", false)]
    #[case("a..b", false)]
    #[case("-", false)]
    #[case("https://x:6443", false)]
    fn every_name_becomes_one_that_an_object_can_have(#[case] named: &str, #[case] same: bool) {
        let made = name(named);
        assert_eq!(made == named, same, "{made}");
        assert!(
            made.split('.')
                .all(|part| !part.is_empty() && !part.starts_with('-') && !part.ends_with('-')),
            "{made}"
        );
    }
}
