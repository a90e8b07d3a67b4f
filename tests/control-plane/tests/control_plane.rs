//! Control planes start, change, stop, and leave nothing behind.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use control_plane::{Binary, ControlPlane, Error, Version, eventually, shared};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ServiceAccount};
use kube::api::{Api, ObjectMeta, PostParams};

const PROGRAM: &str = env!("CARGO_BIN_EXE_control-plane");

fn named(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        ..ObjectMeta::default()
    }
}

fn namespace(name: &str) -> Namespace {
    Namespace {
        metadata: named(name),
        ..Namespace::default()
    }
}

/// The processes whose command line names the folder.
fn processes_of(folder: &Path) -> Vec<String> {
    let folder = folder.to_str().unwrap();
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| fs::read(entry.ok()?.path().join("cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(folder))
        .collect()
}

fn wait_until_gone(folder: &Path) {
    let until = Instant::now() + Duration::from_secs(10);
    while folder.exists() || !processes_of(folder).is_empty() {
        assert!(
            Instant::now() < until,
            "left behind: folder {}, {:?}",
            folder.exists(),
            processes_of(folder)
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[tokio::test]
async fn serves_an_administrator() {
    let plane = shared(Version::V1_34);
    let client = plane.client().unwrap();
    let version = client.apiserver_version().await.unwrap();
    assert_eq!(version.git_version, "v1.34.4");
    let namespaces: Api<Namespace> = Api::all(client);
    namespaces
        .create(&PostParams::default(), &namespace("serves"))
        .await
        .unwrap();
    namespaces.get("serves").await.unwrap();
}

#[tokio::test]
async fn is_described_by_a_kubeconfig() {
    let plane = shared(Version::V1_34);
    let text = fs::read_to_string(plane.kubeconfig_path()).unwrap();
    assert_eq!(text, plane.kubeconfig());
    let config = kube::config::Kubeconfig::from_yaml(&text).unwrap();
    let config =
        kube::Config::from_custom_kubeconfig(config, &kube::config::KubeConfigOptions::default())
            .await
            .unwrap();
    assert!(config.cluster_url.to_string().starts_with(&plane.url()));
    let client = kube::Client::try_from(config).unwrap();
    Api::<Namespace>::all(client).get("default").await.unwrap();
}

#[tokio::test]
async fn refuses_a_user_without_rights() {
    let mut plane = ControlPlane::builder(Version::V1_34)
        .user("carol", &["developers", "carol's, \"own\""])
        .start()
        .unwrap();
    let carol = Api::<Namespace>::all(plane.client_for("carol").unwrap());
    let Err(kube::Error::Api(status)) = carol.get("default").await else {
        panic!("carol is not refused");
    };
    assert_eq!(status.code, 403);
    assert!(matches!(
        plane.client_for("dave"),
        Err(Error::UnknownUser(_))
    ));

    // The arguments of a restart are used, and what was said of the builder's remains.
    plane
        .restart_with(["--authorization-mode=AlwaysAllow"])
        .unwrap();
    let carol = Api::<Namespace>::all(plane.client_for("carol").unwrap());
    carol.get("default").await.unwrap();

    plane.kill_api_server().unwrap();
    assert!(carol.get("default").await.is_err());
    plane.start_api_server().unwrap();
    carol.get("default").await.unwrap();
}

#[tokio::test]
async fn is_upgraded_in_place() {
    let mut plane = ControlPlane::builder(Version::V1_29)
        .feature_gate("ValidatingAdmissionPolicy", true)
        .runtime_config("admissionregistration.k8s.io/v1beta1=true")
        .start()
        .unwrap();
    let url = plane.url();
    let client = plane.client().unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let map = ConfigMap {
        metadata: named("kept"),
        ..ConfigMap::default()
    };
    let before = maps.create(&PostParams::default(), &map).await.unwrap();

    plane.restart_as(Version::V1_30).unwrap();
    assert_eq!(plane.version(), Version::V1_30);
    assert_eq!(plane.url(), url);
    let version = client.apiserver_version().await.unwrap();
    assert_eq!(version.git_version, "v1.30.14");
    assert_eq!(
        maps.get("kept").await.unwrap().metadata.uid,
        before.metadata.uid
    );
}

#[tokio::test]
async fn hangs_while_paused_and_leaves_nothing_when_dropped() {
    let plane = ControlPlane::builder(Version::V1_34).start().unwrap();
    let namespaces = Api::<Namespace>::all(plane.client().unwrap());
    namespaces.get("default").await.unwrap();
    plane.pause().unwrap();
    let hanging = tokio::time::timeout(Duration::from_secs(1), namespaces.get("default")).await;
    assert!(hanging.is_err(), "answered while paused: {hanging:?}");
    plane.resume().unwrap();
    eventually(
        "an answer after the pause",
        Duration::from_secs(10),
        async || namespaces.get("default").await.ok(),
    )
    .await;

    plane.pause().unwrap();
    let folder = plane.folder().to_owned();
    assert!(folder.is_dir());
    // The API server, etcd and the watchdog.
    assert_eq!(
        processes_of(&folder).len(),
        3,
        "{:?}",
        processes_of(&folder)
    );
    drop(plane);
    assert!(!folder.exists());
    assert_eq!(processes_of(&folder), Vec::<String>::new());
}

#[tokio::test]
async fn runs_controllers() {
    let plane = ControlPlane::builder(Version::V1_34)
        .controller_manager()
        .start()
        .unwrap();
    let client = plane.client().unwrap();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces
        .create(&PostParams::default(), &namespace("controlled"))
        .await
        .unwrap();
    let accounts: Api<ServiceAccount> = Api::namespaced(client, "controlled");
    eventually("a service account", Duration::from_secs(20), async || {
        accounts.get("default").await.ok()
    })
    .await;
    assert!(plane.log_path(Binary::KubeControllerManager).is_file());
}

#[test]
fn leaves_nothing_when_the_process_is_killed() {
    let mut up = Command::new(PROGRAM)
        .args(["up", "--version", "1.34"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(up.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let folder = PathBuf::from(line.trim()).parent().unwrap().to_owned();
    assert!(!processes_of(&folder).is_empty());
    up.kill().unwrap();
    up.wait().unwrap();
    wait_until_gone(&folder);
}

#[test]
fn says_how_a_process_failed() {
    let error = ControlPlane::builder(Version::V1_34)
        .feature_gate("NoSuchGate", true)
        .start()
        .unwrap_err()
        .to_string();
    assert!(error.contains("kube-apiserver v1.34.4 ended"), "{error}");
    assert!(
        error.contains("unrecognized feature gate: NoSuchGate"),
        "{error}"
    );
}

#[test]
fn says_that_go_is_missing() {
    let cache = tempfile::tempdir().unwrap();
    let output = Command::new(PROGRAM)
        .args(["build", "1.34"])
        .env("BOUNDARY_OPERATOR_CACHE", cache.path())
        .env("PATH", cache.path())
        .env_remove("KUBEBUILDER_ASSETS")
        .output()
        .unwrap();
    assert!(!output.status.success());
    let error = String::from_utf8(output.stderr).unwrap();
    let expected =
        "building etcd v3.6.16 needs Go 1.26.0 or newer, and there is no `go` on the PATH";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn reads_versions() {
    for version in Version::ALL {
        let minor = format!("1.{}", version.minor());
        for text in [
            version.tag(),
            &version.tag()[1..],
            &minor,
            &format!("v{minor}"),
        ] {
            assert_eq!(text.parse::<Version>().unwrap(), version);
        }
        assert_eq!(version.to_string(), version.tag());
    }
    assert!("1.2".parse::<Version>().is_err());
}
