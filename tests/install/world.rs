//! Control planes with all controllers, what runs against them, and a kubeconfig with all of them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use control_plane::{ControlPlane, Tool, Version, binaries, eventually};
use k8s_openapi::api::core::v1::{PodSpec, Secret, ServiceAccount};
use kube::Client;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

pub(crate) const NAMESPACE: &str = "boundary-operator";
/// Who the operator is to an API server.
pub(crate) const ACCOUNT: &str = "system:serviceaccount:boundary-operator:boundary-operator";
pub(crate) const SOON: Duration = Duration::from_mins(1);
pub(crate) const OPERATOR_CHART: &str = "charts/boundary-operator";

pub(crate) fn plane(version: Version) -> ControlPlane {
    ControlPlane::builder(version)
        .controller_manager()
        .start()
        .unwrap()
}

/// What a command ended with and printed.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: Option<i32>,
    pub(crate) output: String,
}

pub(crate) fn run(command: &mut Command) -> Ended {
    let output = command
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    Ended {
        status: output.status.code(),
        output: String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr),
    }
}

pub(crate) fn helm(plane: &ControlPlane, arguments: &[&str]) -> String {
    let helm = binaries::ensure_tool(Tool::Helm).unwrap();
    let ended = run(Command::new(helm)
        .arg("--kubeconfig")
        .arg(plane.kubeconfig_path())
        .args(arguments));
    assert_eq!(
        ended.status,
        Some(0),
        "helm {arguments:?}: {}",
        ended.output
    );
    ended.output
}

pub(crate) fn install(hub: &ControlPlane) {
    install_with(hub, &[]);
}

pub(crate) fn install_with(hub: &ControlPlane, values: &[&str]) {
    let install = ["install", "boundary-operator", OPERATOR_CHART];
    let mut arguments = install.to_vec();
    arguments.extend(["--namespace", NAMESPACE, "--create-namespace"]);
    arguments.extend(values.iter().flat_map(|value| ["--set", value]));
    helm(hub, &arguments);
}

/// A folder with a kubeconfig with a context for each control plane; the first is the hub.
pub(crate) struct Contexts {
    folder: tempfile::TempDir,
}

impl Contexts {
    pub(crate) fn new(planes: &[(&str, &ControlPlane)]) -> Self {
        let mut all = json!({"apiVersion": "v1", "kind": "Config", "clusters": [], "users": [],
            "contexts": [], "current-context": planes[0].0});
        for (name, plane) in planes {
            let one: Value = serde_saphyr::from_str(&plane.kubeconfig()).unwrap();
            let push = |all: &mut Value, list: &str, entry: Value| {
                all[list].as_array_mut().unwrap().push(entry);
            };
            let cluster = &one["clusters"][0]["cluster"];
            push(
                &mut all,
                "clusters",
                json!({"name": name, "cluster": cluster}),
            );
            let user = &one["users"][0]["user"];
            push(&mut all, "users", json!({"name": name, "user": user}));
            let context = json!({"name": name, "context": {"cluster": name, "user": name}});
            push(&mut all, "contexts", context);
        }
        let contexts = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        std::fs::write(contexts.path(), all.to_string()).unwrap();
        contexts
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("config")
    }

    /// Runs the plugin.
    pub(crate) fn boundary(&self, arguments: &[&str]) -> Ended {
        run(Command::new(env!("CARGO_BIN_EXE_kubectl-boundary"))
            .args(arguments)
            .env("KUBECONFIG", self.path()))
    }

    /// Runs the plugin, which must succeed.
    pub(crate) fn fine(&self, arguments: &[&str]) -> String {
        let ended = self.boundary(arguments);
        assert_eq!(ended.status, Some(0), "{arguments:?}: {}", ended.output);
        ended.output
    }
}

/// The operator, as the Pods of the chart would run it: with the arguments and files that the
/// Deployment gives, the token of the chart's service account, and nothing else.
pub(crate) struct Operator {
    child: Child,
    folder: tempfile::TempDir,
    /// Where it serves the API about compute plans, if it does.
    pub(crate) plan_api: Option<SocketAddr>,
}

impl Operator {
    pub(crate) async fn start(hub: &ControlPlane, more: &[&str]) -> Self {
        let client = hub.client().unwrap();
        let token = service_account_token(&client).await;
        let folder = tempfile::tempdir().unwrap();
        let mut kubeconfig: Value = serde_saphyr::from_str(&hub.kubeconfig()).unwrap();
        kubeconfig["users"][0]["user"] = json!({"token": token});
        let path = folder.path().join("kubeconfig");
        std::fs::write(&path, kubeconfig.to_string()).unwrap();
        let deployment = crate::release::deployment(&client).await;
        let pod = deployment.spec.unwrap().template.spec.unwrap();
        mount(&client, &pod, folder.path()).await;
        let mut command = Command::new(env!("CARGO_BIN_EXE_boundary-operator"));
        command.env_clear().arg("--kubeconfig").arg(&path);
        let mut plan_api = None;
        for argument in pod.containers[0].args.as_ref().unwrap() {
            if argument.starts_with("--metrics-address=") {
                command.arg("--metrics-address=127.0.0.1:0");
            } else if argument.starts_with("--plan-api-address=") {
                let address: SocketAddr = format!("127.0.0.1:{}", free_port()).parse().unwrap();
                command.arg(format!("--plan-api-address={address}"));
                plan_api = Some(address);
            } else {
                let place = format!("={}/", folder.path().display());
                command.arg(argument.replace("=/", &place));
            }
        }
        for variable in pod.containers[0].env.iter().flatten() {
            let field = variable.value_from.as_ref().map(|_| NAMESPACE.to_owned());
            command.env(&variable.name, variable.value.clone().or(field).unwrap());
        }
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let child = command
            .args(["--capabilities-interval", "1s"])
            .args(["--resync-interval", "2s", "--request-timeout", "3s"])
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Self {
            child,
            folder,
            plan_api,
        }
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }
}

/// Puts what the Secrets of the Pod hold where they are mounted, below `root`, as the kubelet does.
async fn mount(client: &Client, pod: &PodSpec, root: &Path) {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    for mount in pod.containers[0].volume_mounts.iter().flatten() {
        let mut volumes = pod.volumes.iter().flatten();
        let volume = volumes.find(|volume| volume.name == mount.name).unwrap();
        let name = volume.secret.as_ref().unwrap().secret_name.clone().unwrap();
        let folder = root.join(mount.mount_path.trim_start_matches('/'));
        std::fs::create_dir_all(&folder).unwrap();
        for (file, bytes) in secrets.get(&name).await.unwrap().data.unwrap() {
            std::fs::write(folder.join(file), bytes.0).unwrap();
        }
    }
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

impl Drop for Operator {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn service_account_token(client: &Client) -> String {
    token(client, NAMESPACE, "boundary-operator", &[]).await
}

/// A token of a service account, for these audiences.
pub(crate) async fn token(
    client: &Client,
    namespace: &str,
    account: &str,
    audiences: &[&str],
) -> String {
    let api: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let request = serde_json::from_value(json!({"spec": {"audiences": audiences}})).unwrap();
    let params = PostParams::default();
    let made = eventually("a token is made", SOON, async || {
        let made = api.create_token_request(account, &params, &request);
        made.await.ok()
    });
    made.await.status.unwrap().token.unwrap()
}

pub(crate) async fn apply(client: &Client, yaml: &str) {
    use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
    for document in yaml.split("\n---\n") {
        let object: DynamicObject = serde_saphyr::from_str(document).unwrap();
        let types = object.types.clone().unwrap();
        let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(&types).unwrap());
        let api: Api<DynamicObject> = match &object.metadata.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        let params = PatchParams::apply("test").force();
        let name = object.metadata.name.clone().unwrap();
        eventually(&format!("{name} is applied"), SOON, async || {
            api.patch(&name, &params, &Patch::Apply(&object)).await.ok()
        })
        .await;
    }
}

/// Why a Pod is refused, if it is. Nothing is stored.
pub(crate) async fn refusal(client: &Client, namespace: &str, image: &str) -> Option<String> {
    use k8s_openapi::api::core::v1::Pod;
    let pod = serde_json::from_value(json!({
        "metadata": {"name": "tried"},
        "spec": {"containers": [{"name": "main", "image": image}]},
    }));
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    match api.create(&params, &pod.unwrap()).await {
        Ok(_) => None,
        Err(kube::Error::Api(status)) => Some(status.message),
        Err(error) => panic!("{error}"),
    }
}

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
