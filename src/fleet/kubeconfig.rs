//! Kubeconfigs from Secrets, which are untrusted input: nothing in one may run a program, read a
//! file of the operator or send its traffic elsewhere.

use kube::config::{AuthInfo, Cluster, KubeConfigOptions, Kubeconfig, NamedAuthInfo, NamedCluster};

/// The longest kubeconfig that is read, in bytes.
pub const MAX_BYTES: usize = 1024 * 1024;

/// Why a kubeconfig is not used. The text names the field and what to do, never a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct KubeconfigError(String);

/// Reads a kubeconfig, checks what its current context uses, and makes a client configuration.
///
/// # Errors
/// It can't be read, or has something that is refused: a program or a provider for credentials, a
/// file path, a proxy, impersonation, a server that is not `https` (`http` is for loopback only).
pub async fn load(bytes: &[u8]) -> Result<kube::Config, KubeconfigError> {
    let kubeconfig = checked(bytes)?;
    let loaded =
        kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    // The cause is left out: it may quote what it could not read.
    let mut config = loaded.map_err(|_| {
        error(
            "clusters[].cluster can't be used: server must be a URL and \
             certificate-authority-data certificates in PEM, encoded in base64",
        )
    })?;
    config.proxy_url = None;
    Ok(config)
}

/// The kubeconfig with nothing but its current context.
fn checked(bytes: &[u8]) -> Result<Kubeconfig, KubeconfigError> {
    if bytes.len() > MAX_BYTES {
        return Err(error(
            "it is longer than 1 MiB: keep only the context that is used",
        ));
    }
    let text = std::str::from_utf8(bytes)
        .map_err(|_| error("it is not UTF-8 text: store the kubeconfig as YAML"))?;
    let mut kubeconfig: Kubeconfig = serde_saphyr::from_str(text).map_err(|cause| {
        let at = cause
            .location()
            .map(|location| format!(" (line {})", location.line()))
            .unwrap_or_default();
        error(format!(
            "it can't be read as a kubeconfig{at}: it must be YAML of kind Config"
        ))
    })?;

    let context = kubeconfig
        .current_context
        .clone()
        .filter(|context| !context.is_empty())
        .ok_or_else(|| error("current-context is not set: set it to the context to use"))?;
    kubeconfig.contexts.retain(|named| named.name == context);
    let (cluster, user) = kubeconfig
        .contexts
        .first()
        .and_then(|named| named.context.as_ref())
        .map(|context| (context.cluster.clone(), context.user.clone()))
        .ok_or_else(|| error("current-context names a context that is not in contexts"))?;
    kubeconfig.clusters.retain(|named| named.name == cluster);
    kubeconfig
        .auth_infos
        .retain(|named| Some(&named.name) == user.as_ref());

    match kubeconfig.clusters.first() {
        Some(NamedCluster {
            cluster: Some(cluster),
            ..
        }) => check_cluster(cluster)?,
        _ => {
            return Err(error(
                "the current context names a cluster that is not in clusters",
            ));
        }
    }
    match (user, kubeconfig.auth_infos.first()) {
        (
            _,
            Some(NamedAuthInfo {
                auth_info: Some(user),
                ..
            }),
        ) => check_user(user)?,
        (Some(_), _) => {
            return Err(error(
                "the current context names a user that is not in users",
            ));
        }
        (None, _) => {}
    }
    Ok(kubeconfig)
}

fn check_cluster(cluster: &Cluster) -> Result<(), KubeconfigError> {
    refuse_file(
        "certificate-authority",
        cluster.certificate_authority.as_deref(),
    )?;
    if is_set(cluster.proxy_url.as_deref()) {
        return Err(error(
            "proxy-url is refused: the operator connects to clusters directly",
        ));
    }
    let server = cluster.server.as_deref().unwrap_or_default();
    let uri: http::Uri = server
        .parse()
        .map_err(|_| error("server is not a URL: write it like https://api.example.com:6443"))?;
    let loopback = match uri.host() {
        Some(host) => {
            let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
            host == "localhost" || address.is_ok_and(|address| address.is_loopback())
        }
        None => {
            return Err(error(
                "server has no host: write it like https://api.example.com:6443",
            ));
        }
    };
    match uri.scheme_str() {
        Some("https") => Ok(()),
        Some("http") if loopback => Ok(()),
        _ => Err(error(
            "server must begin with https://: credentials must not travel in the clear",
        )),
    }
}

fn check_user(user: &AuthInfo) -> Result<(), KubeconfigError> {
    if user.exec.is_some() {
        return Err(error(
            "exec is refused: the operator runs no programs; use token or \
             client-certificate-data and client-key-data",
        ));
    }
    if user.auth_provider.is_some() {
        return Err(error(
            "auth-provider is refused; use token or client-certificate-data and client-key-data",
        ));
    }
    refuse_file("client-certificate", user.client_certificate.as_deref())?;
    refuse_file("client-key", user.client_key.as_deref())?;
    if is_set(user.token_file.as_deref()) {
        return Err(error(
            "tokenFile is refused: put the token itself into token",
        ));
    }
    let impersonates = is_set(user.impersonate.as_deref())
        || is_set(user.impersonate_uid.as_deref())
        || user.impersonate_groups.is_some()
        || user.impersonate_user_extra.is_some();
    if impersonates {
        return Err(error(
            "impersonation (as) is refused: use credentials of the user itself",
        ));
    }
    Ok(())
}

fn refuse_file(field: &str, value: Option<&str>) -> Result<(), KubeconfigError> {
    if is_set(value) {
        return Err(error(format!(
            "{field} is refused, since it names a file: put the content, in base64, into {field}-data"
        )));
    }
    Ok(())
}

fn is_set(value: Option<&str>) -> bool {
    value.is_some_and(|value| !value.is_empty())
}

fn error(text: impl Into<String>) -> KubeconfigError {
    KubeconfigError(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kubeconfig(cluster: &str, user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: a\n\
             contexts: [{{name: a, context: {{cluster: a, user: a}}}}]\n\
             clusters: [{{name: a, cluster: {{{cluster}}}}}]\n\
             users: [{{name: a, user: {{{user}}}}}, {{name: b, user: {{exec: {{command: sh}}}}}}]\n"
        )
    }

    const SERVER: &str = "server: 'https://a.example:6443'";

    #[rstest::rstest]
    #[case::exec(SERVER, "exec: {command: sh}", "exec is refused")]
    #[case::provider(
        SERVER,
        "auth-provider: {name: gcp, config: {}}",
        "auth-provider is refused"
    )]
    #[case::certificate(
        SERVER,
        "client-certificate: /etc/s3cret",
        "client-certificate is refused"
    )]
    #[case::key(SERVER, "client-key: /etc/s3cret", "client-key is refused")]
    #[case::token_file(SERVER, "tokenFile: /etc/s3cret", "tokenFile is refused")]
    #[case::impersonation(SERVER, "as: s3cret", "impersonation (as) is refused")]
    #[case::groups(SERVER, "as-groups: [s3cret]", "impersonation (as) is refused")]
    #[case::authority(
        "server: 'https://a', certificate-authority: /etc/s3cret",
        "token: t",
        "certificate-authority is refused"
    )]
    #[case::proxy(
        "server: 'https://a', proxy-url: 'http://s3cret'",
        "token: t",
        "proxy-url is refused"
    )]
    #[case::http(
        "server: 'http://a.example'",
        "token: s3cret",
        "must begin with https://"
    )]
    #[case::no_scheme("server: a.example", "token: s3cret", "must begin with https://")]
    #[case::no_server("server: ''", "token: s3cret", "server is not a URL")]
    #[tokio::test]
    async fn refuses(#[case] cluster: &str, #[case] user: &str, #[case] expected: &str) {
        let error = load(kubeconfig(cluster, user).as_bytes())
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{error}");
        assert!(!error.contains("s3cret"), "{error}");
    }

    #[rstest::rstest]
    #[case::token(SERVER, "token: t")]
    #[case::loopback("server: 'http://127.0.0.1:8001'", "token: t")]
    #[case::loopback_v6("server: 'http://[::1]:8001'", "token: t")]
    #[case::insecure("server: 'https://a', insecure-skip-tls-verify: true", "token: t")]
    #[case::empty_path(SERVER, "token: t, client-key: ''")]
    #[tokio::test]
    async fn accepts(#[case] cluster: &str, #[case] user: &str) {
        load(kubeconfig(cluster, user).as_bytes()).await.unwrap();
    }

    #[rstest::rstest]
    #[case::not_yaml("{s3cret", "can't be read as a kubeconfig")]
    #[case::other("- s3cret", "can't be read as a kubeconfig")]
    #[case::empty("kind: Config", "current-context is not set")]
    #[case::no_context("current-context: s3cret", "names a context that is not in contexts")]
    #[tokio::test]
    async fn says_what_can_not_be_read(#[case] text: &str, #[case] expected: &str) {
        let error = load(text.as_bytes()).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(!error.contains("s3cret"), "{error}");
    }

    #[tokio::test]
    async fn refuses_what_is_too_long() {
        let error = load(&vec![b' '; MAX_BYTES + 1])
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains("1 MiB"), "{error}");
    }
}
