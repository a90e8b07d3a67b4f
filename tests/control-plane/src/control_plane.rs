use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rustix::process::Signal;

use crate::credentials::{self, ADMIN, Authority, CONTROLLER_MANAGER, User};
use crate::http::Probe;
use crate::process::{self, Process, Watchdog};
use crate::{Binary, Error, Version, binaries};

/// How often a process is started on another port when its port turns out to be taken.
const TRIES: usize = 5;

/// How long a process that is asked to end may take before it is killed. Without open watches
/// the API server takes 1 s; with one it would wait up to a minute for it to be closed.
const STOP_GRACE: Duration = Duration::from_secs(3);

/// The same, when nothing of it is needed any more.
const DROP_GRACE: Duration = Duration::from_secs(2);

/// What a control plane is to be like; see [`ControlPlane::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    version: Version,
    controller_manager: bool,
    feature_gates: Vec<(String, bool)>,
    runtime_config: Vec<String>,
    api_server_args: Vec<String>,
    users: Vec<(String, Vec<String>)>,
}

impl Builder {
    /// Starts a kube-controller-manager too.
    pub fn controller_manager(mut self) -> Self {
        self.controller_manager = true;
        self
    }

    /// Turns a feature gate on or off, in every process that has gates.
    pub fn feature_gate(mut self, name: impl Into<String>, on: bool) -> Self {
        self.feature_gates.push((name.into(), on));
        self
    }

    /// Serves APIs that are off by default, as `admissionregistration.k8s.io/v1beta1=true`.
    pub fn runtime_config(mut self, setting: impl Into<String>) -> Self {
        self.runtime_config.push(setting.into());
        self
    }

    /// Adds an argument of the API server, as `--audit-policy-file=/path`; it replaces the same
    /// flag of those that this crate gives.
    pub fn api_server_arg(mut self, arg: impl Into<String>) -> Self {
        self.api_server_args.push(arg.into());
        self
    }

    /// Adds a user with a token, who may do what RBAC allows them and their groups.
    pub fn user(mut self, name: impl Into<String>, groups: &[&str]) -> Self {
        self.users
            .push((name.into(), groups.iter().map(|&g| g.to_owned()).collect()));
        self
    }

    /// Builds the binaries when they are not there yet, starts everything and waits until it is
    /// ready: the API server serves, and the namespace `default` exists, with its service
    /// account when there is a kube-controller-manager.
    pub fn start(self) -> Result<ControlPlane, Error> {
        ControlPlane::start(self)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Ports {
    etcd: u16,
    etcd_peer: u16,
    api_server: u16,
    controller_manager: u16,
}

/// A running control plane; dropping it ends its processes and removes its folder.
#[derive(Debug)]
pub struct ControlPlane {
    settings: Builder,
    extra_args: Vec<String>,
    folder: PathBuf,
    ports: Ports,
    users: Vec<User>,
    authority: Authority,
    probe: Probe,
    etcd: Option<Process>,
    api_server: Option<Process>,
    controller_manager: Option<Process>,
    watchdog: Watchdog,
    kept: bool,
}

impl ControlPlane {
    /// Describes a control plane of this version.
    pub fn builder(version: Version) -> Builder {
        Builder {
            version,
            controller_manager: false,
            feature_gates: Vec::new(),
            runtime_config: Vec::new(),
            api_server_args: Vec::new(),
            users: Vec::new(),
        }
    }

    fn start(settings: Builder) -> Result<Self, Error> {
        // First of all, since building takes minutes and nothing needs to run meanwhile.
        binaries::ensure(Binary::Etcd, settings.version)?;
        binaries::ensure(Binary::KubeApiserver, settings.version)?;
        if settings.controller_manager {
            binaries::ensure(Binary::KubeControllerManager, settings.version)?;
        }

        let mut users = vec![
            User::new(ADMIN, &["system:masters"])?,
            User::new(CONTROLLER_MANAGER, &["system:masters"])?,
        ];
        for (name, groups) in &settings.users {
            let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
            users.push(User::new(name, &groups)?);
        }
        let folder = tempfile::Builder::new()
            .prefix("control-plane-")
            .tempdir()
            .map_err(Error::io("creating a folder for the control plane"))?;
        let authority = credentials::write(folder.path(), &users)?;
        let probe = Probe::new(&authority.der)?;
        let watchdog = Watchdog::new(folder.path())?;
        let mut plane = Self {
            settings,
            extra_args: Vec::new(),
            folder: folder.keep(),
            ports: Ports::default(),
            users,
            authority,
            probe,
            etcd: None,
            api_server: None,
            controller_manager: None,
            watchdog,
            kept: false,
        };
        plane.retrying(|p| {
            p.ports.etcd = process::free_port()?;
            p.ports.etcd_peer = process::free_port()?;
            p.run_etcd()
        })?;
        plane.retrying(|p| {
            p.ports.api_server = process::free_port()?;
            p.run_api_server()
        })?;
        credentials::write_private(&plane.kubeconfig_path(), &plane.kubeconfig())?;
        if plane.settings.controller_manager {
            plane.run_controller_manager()?;
        }
        Ok(plane)
    }

    /// The version of the API server.
    #[must_use]
    pub fn version(&self) -> Version {
        self.settings.version
    }

    /// The address of the API server, as `https://127.0.0.1:20123`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.ports.api_server)
    }

    /// The certificate of the authority that the API server's certificate is of, as PEM.
    #[must_use]
    pub fn ca_pem(&self) -> &str {
        &self.authority.pem
    }

    /// The folder with the logs, certificates and data.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The log of one of the processes, over all its restarts.
    #[must_use]
    pub fn log_path(&self, binary: Binary) -> PathBuf {
        process::log_path(&self.folder, binary)
    }

    /// A kubeconfig of the user `admin`, who may do everything, with all in it inline.
    #[must_use]
    pub fn kubeconfig(&self) -> String {
        self.kubeconfig_of(&self.users[0])
    }

    /// The file of [`ControlPlane::kubeconfig`], which is there as long as the control plane.
    #[must_use]
    pub fn kubeconfig_path(&self) -> PathBuf {
        self.folder.join("kubeconfig")
    }

    /// A kubeconfig of a user that was added with [`Builder::user`].
    pub fn kubeconfig_for(&self, user: &str) -> Result<String, Error> {
        Ok(self.kubeconfig_of(self.user(user)?))
    }

    /// A client configuration of the user `admin`.
    pub fn config(&self) -> Result<kube::Config, Error> {
        self.config_for(ADMIN)
    }

    /// A client configuration of a user that was added with [`Builder::user`].
    pub fn config_for(&self, user: &str) -> Result<kube::Config, Error> {
        static PROVIDER: Once = Once::new();
        PROVIDER.call_once(|| {
            // Fails when the process has chosen one already, which is as good.
            let _ = rustls::crypto::ring::default_provider().install_default();
        });
        let user = self.user(user)?;
        let url = self
            .url()
            .parse()
            .map_err(|e| Error::io("reading the address")(std::io::Error::other(e)))?;
        let mut config = kube::Config::new(url);
        config.root_cert = Some(vec![self.authority.der.clone()]);
        config.auth_info.token = Some(user.token.clone().into());
        Ok(config)
    }

    /// A new client of the user `admin`.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime, to which the client belongs.
    pub fn client(&self) -> Result<kube::Client, Error> {
        self.client_for(ADMIN)
    }

    /// A new client of a user that was added with [`Builder::user`].
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime, to which the client belongs.
    pub fn client_for(&self, user: &str) -> Result<kube::Client, Error> {
        let config = self.config_for(user)?;
        kube::Client::try_from(config).map_err(|error| Error::Client(Box::new(error)))
    }

    /// Replaces the API server, and the kube-controller-manager if there is one, by those of
    /// another version, as an upgrade does: the data, the address and the credentials remain.
    pub fn restart_as(&mut self, version: Version) -> Result<(), Error> {
        binaries::ensure(Binary::KubeApiserver, version)?;
        if self.settings.controller_manager {
            binaries::ensure(Binary::KubeControllerManager, version)?;
            self.end(Binary::KubeControllerManager, STOP_GRACE)?;
        }
        self.stop_api_server()?;
        self.settings.version = version;
        self.start_api_server()?;
        if self.settings.controller_manager {
            self.run_controller_manager()?;
        }
        Ok(())
    }

    /// Restarts the API server with these arguments besides those of the builder; they replace
    /// the ones of an earlier call, and stay over other restarts.
    pub fn restart_with<A: Into<String>>(
        &mut self,
        extra_args: impl IntoIterator<Item = A>,
    ) -> Result<(), Error> {
        self.extra_args = extra_args.into_iter().map(Into::into).collect();
        self.stop_api_server()?;
        self.start_api_server()
    }

    /// Asks the API server to end, and waits until it has; kills it after 3 s, as it takes longer
    /// when a client keeps a watch open. Does nothing when it is not running.
    pub fn stop_api_server(&mut self) -> Result<(), Error> {
        self.end(Binary::KubeApiserver, STOP_GRACE)
    }

    /// Starts the API server again, on the same port. Does nothing when it is running.
    pub fn start_api_server(&mut self) -> Result<(), Error> {
        match self.api_server {
            Some(_) => Ok(()),
            None => self.retrying(Self::run_api_server),
        }
    }

    /// Kills the API server, as a crash does.
    pub fn kill_api_server(&mut self) -> Result<(), Error> {
        self.end(Binary::KubeApiserver, Duration::ZERO)
    }

    /// Makes the API server hang: from now on connections to it are taken, and never answered.
    pub fn pause(&self) -> Result<(), Error> {
        self.running_api_server()?.pause()
    }

    /// Lets the API server go on after [`ControlPlane::pause`].
    pub fn resume(&self) -> Result<(), Error> {
        self.running_api_server()?.signal(Signal::CONT)
    }

    /// Leaves everything running, also after this process, and returns the folder. Whoever
    /// calls it has to end the processes whose ids are in the file `pids` there.
    #[must_use]
    pub fn keep(mut self) -> PathBuf {
        self.watchdog.disarm();
        self.kept = true;
        self.folder.clone()
    }

    fn user(&self, name: &str) -> Result<&User, Error> {
        self.users
            .iter()
            .find(|user| user.name == name)
            .ok_or_else(|| Error::UnknownUser(name.to_owned()))
    }

    fn kubeconfig_of(&self, user: &User) -> String {
        format!(
            r#"apiVersion: v1
kind: Config
clusters:
- name: control-plane
  cluster:
    server: {url}
    certificate-authority-data: {ca}
users:
- name: user
  user:
    token: "{token}"
contexts:
- name: control-plane
  context:
    cluster: control-plane
    user: user
current-context: control-plane
"#,
            url = self.url(),
            ca = BASE64_STANDARD.encode(&self.authority.pem),
            token = user.token,
        )
    }

    fn running_api_server(&self) -> Result<&Process, Error> {
        self.api_server
            .as_ref()
            .ok_or(Error::NotRunning(Binary::KubeApiserver))
    }

    fn slot(&mut self, binary: Binary) -> &mut Option<Process> {
        match binary {
            Binary::Etcd => &mut self.etcd,
            Binary::KubeApiserver => &mut self.api_server,
            Binary::KubeControllerManager => &mut self.controller_manager,
        }
    }

    fn end(&mut self, binary: Binary, grace: Duration) -> Result<(), Error> {
        let Some(process) = self.slot(binary).take() else {
            return Ok(());
        };
        if !grace.is_zero() {
            process.terminate();
        }
        process.wait(grace);
        let running: Vec<&Process> = [&self.etcd, &self.api_server, &self.controller_manager]
            .into_iter()
            .flatten()
            .collect();
        process::write_pids(&self.folder, &running)
    }

    /// Runs a step again when it failed because a port was taken since it was found free.
    fn retrying(
        &mut self,
        mut step: impl FnMut(&mut Self) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut tries = TRIES;
        loop {
            tries -= 1;
            match step(self) {
                Err(Error::Ended { log, .. }) if tries > 0 && log.contains(process::PORT_TAKEN) => {
                    std::thread::sleep(Duration::from_millis(200));
                }
                other => return other,
            }
        }
    }

    /// Starts a process and waits until it is ready; ends it when it does not become so.
    fn run(
        &mut self,
        binary: Binary,
        args: &[OsString],
        ready: impl Fn(&Self, &Process) -> Result<(), String>,
    ) -> Result<(), Error> {
        let version = self.settings.version;
        let program = binaries::ensure(binary, version)?;
        let mut process = Process::spawn(binary, version, &program, args, &self.folder)?;
        let result = process.ready(|process| ready(self, process));
        *self.slot(binary) = Some(process);
        if result.is_err() {
            self.end(binary, Duration::ZERO)?;
        }
        result
    }

    fn run_etcd(&mut self) -> Result<(), Error> {
        let data = self.folder.join("etcd");
        let client = format!("http://127.0.0.1:{}", self.ports.etcd);
        let peer = format!("http://127.0.0.1:{}", self.ports.etcd_peer);
        // What a try before this one left names other ports.
        let _ = fs::remove_dir_all(&data);
        let args = [
            flag("data-dir", data),
            flag("listen-client-urls", &client),
            flag("advertise-client-urls", &client),
            flag("listen-peer-urls", &peer),
            flag("initial-advertise-peer-urls", &peer),
            flag("initial-cluster", format!("default={peer}")),
            "--unsafe-no-fsync".into(),
        ];
        self.run(Binary::Etcd, &args, |_, process| {
            if process.logged("ready to serve client requests") {
                Ok(())
            } else {
                Err("it has not said that it is ready".to_owned())
            }
        })
    }

    fn run_api_server(&mut self) -> Result<(), Error> {
        let file = |name: &str| self.folder.join(name).into_os_string();
        let port = self.ports.api_server;
        let etcd = format!("http://127.0.0.1:{}", self.ports.etcd);
        let defaults: Vec<(&str, OsString)> = vec![
            ("etcd-servers", etcd.into()),
            ("bind-address", "127.0.0.1".into()),
            ("advertise-address", "127.0.0.1".into()),
            ("secure-port", port.to_string().into()),
            ("cert-dir", file("api-server")),
            ("tls-cert-file", file("tls.crt")),
            ("tls-private-key-file", file("tls.key")),
            ("authorization-mode", "RBAC".into()),
            ("token-auth-file", file("tokens.csv")),
            (
                "service-account-issuer",
                "https://kubernetes.default.svc".into(),
            ),
            (
                "service-account-signing-key-file",
                file("service-accounts.key"),
            ),
            ("service-account-key-file", file("service-accounts.pub")),
            ("service-cluster-ip-range", "10.0.0.0/24".into()),
            ("disable-admission-plugins", "ServiceAccount".into()),
            ("allow-privileged", "true".into()),
            // The endpoint would be 127.0.0.1, which an endpoint must not be.
            ("endpoint-reconciler-type", "none".into()),
            ("max-requests-inflight", "4000".into()),
            ("max-mutating-requests-inflight", "2000".into()),
            ("profiling", "false".into()),
        ];
        let given: Vec<&String> = self
            .settings
            .api_server_args
            .iter()
            .chain(&self.extra_args)
            .collect();
        let mut args: Vec<OsString> = defaults
            .into_iter()
            .filter(|(name, _)| !given.iter().any(|arg| is_flag(arg, name)))
            .map(|(name, value)| flag(name, value))
            .collect();
        args.extend(self.gates());
        args.extend(
            self.settings
                .runtime_config
                .iter()
                .map(|s| flag("runtime-config", s)),
        );
        args.extend(given.into_iter().map(OsString::from));
        self.run(Binary::KubeApiserver, &args, move |plane, _| {
            let token = &plane.users[0].token;
            plane.probe.get(port, "/readyz", token)?;
            plane.probe.get(port, "/api/v1/namespaces/default", token)
        })
    }

    fn run_controller_manager(&mut self) -> Result<(), Error> {
        let config = self.folder.join("controller-manager.kubeconfig");
        credentials::write_private(&config, &self.kubeconfig_for(CONTROLLER_MANAGER)?)?;
        self.retrying(|plane| {
            let port = process::free_port()?;
            plane.ports.controller_manager = port;
            let file = |name: &str| plane.folder.join(name);
            let mut args = vec![
                flag("kubeconfig", &config),
                flag("leader-elect", "false"),
                flag(
                    "service-account-private-key-file",
                    file("service-accounts.key"),
                ),
                flag("root-ca-file", file("ca.crt")),
                flag("bind-address", "127.0.0.1"),
                flag("secure-port", port.to_string()),
                flag("tls-cert-file", file("tls.crt")),
                flag("tls-private-key-file", file("tls.key")),
                flag("kube-api-qps", "500"),
                flag("kube-api-burst", "1000"),
            ];
            args.extend(plane.gates());
            plane.run(Binary::KubeControllerManager, &args, move |plane, _| {
                let token = &plane.users[0].token;
                let account = "/api/v1/namespaces/default/serviceaccounts/default";
                plane.probe.get(port, "/healthz", token)?;
                plane.probe.get(plane.ports.api_server, account, token)
            })
        })
    }

    fn gates(&self) -> Vec<OsString> {
        let gates = self.settings.feature_gates.iter();
        gates
            .map(|(name, on)| flag("feature-gates", format!("{name}={on}")))
            .collect()
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        let processes = [
            self.controller_manager.take(),
            self.api_server.take(),
            self.etcd.take(),
        ];
        for process in processes.iter().flatten() {
            process.terminate();
        }
        for process in processes.into_iter().flatten() {
            process.wait(DROP_GRACE);
        }
        self.watchdog.disarm();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn flag(name: &str, value: impl Into<OsString>) -> OsString {
    let mut flag = OsString::from(format!("--{name}="));
    flag.push(value.into());
    flag
}

fn is_flag(arg: &str, name: &str) -> bool {
    arg.strip_prefix("--")
        .and_then(|arg| arg.strip_prefix(name))
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
}
