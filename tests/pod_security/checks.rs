//! Every check: a Pod that keeps it, and one that breaks it with what is said. Judged offline.

use std::collections::BTreeMap;

use boundary_operator::api::BOUNDARY_LABEL;
use boundary_operator::evaluate::{Evaluator, Kind, Operation, Request};
use serde_json::{Value, json};

use crate::cluster::{Asked, compiled};

const B: Asked = Asked::BASELINE;
const R: Asked = Asked::RESTRICTED;

/// The sentences about `object`, without what stands before and after the finding.
fn findings(asked: Asked, minor: u16, object: &Value) -> Vec<String> {
    let evaluator = Evaluator::new(&compiled(asked, minor)).unwrap();
    let labels: BTreeMap<_, _> = [(BOUNDARY_LABEL.to_owned(), asked.name())].into();
    let request = Request {
        kind: Kind::of(object).unwrap(),
        sub_resource: "",
        operation: Operation::Create,
        object,
        old_object: None,
        namespace: "web",
        namespace_labels: &labels,
        user: "someone",
        groups: &[],
    };
    let start = format!("Policy '{}' (PodSecurity) denied ", asked.name());
    let message = evaluator.judge(&request).unwrap().pop().map(|f| f.message);
    let message = message.map(|m| m.strip_suffix('.').unwrap().to_owned());
    message
        .iter()
        .flat_map(|message| message.split(&start).skip(1))
        .map(|finding| finding.trim_end_matches(". ").to_owned())
        .collect()
}

fn pinned(asked: Asked, version: &'static str) -> Asked {
    Asked {
        version: Some(version),
        ..asked
    }
}

/// Lays `patch` over `value`, fields in fields and items on items.
fn merge(value: &mut Value, patch: &Value) {
    match (value, patch) {
        (Value::Object(fields), Value::Object(patch)) => {
            for (key, patch) in patch {
                if patch.is_null() {
                    fields.remove(key);
                } else {
                    merge(fields.entry(key).or_insert(Value::Null), patch);
                }
            }
        }
        (Value::Array(items), Value::Array(patch)) if !items.is_empty() && patch[0].is_object() => {
            for (item, patch) in items.iter_mut().zip(patch) {
                merge(item, patch);
            }
        }
        (value, patch) => *value = patch.clone(),
    }
}

/// A Pod with one container `web`, which both levels allow.
fn pod(patch: &Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "web", "image": "registry.k8s.io/pause:3.10",
                "securityContext": {
                    "allowPrivilegeEscalation": false,
                    "capabilities": {"drop": ["ALL"]},
                },
            }],
        },
    });
    merge(&mut pod, patch);
    pod
}

fn spec(spec: &Value) -> Value {
    json!({"spec": spec})
}

fn on_pod(context: &Value) -> Value {
    json!({"spec": {"securityContext": context}})
}

fn container(container: &Value) -> Value {
    json!({"spec": {"containers": [container]}})
}

fn on_container(context: &Value) -> Value {
    json!({"spec": {"containers": [{"securityContext": context}]}})
}

const NONE: &[&str] = &[];

#[rstest::rstest]
#[case::nothing(spec(&json!({})), NONE)]
#[case::host_network(spec(&json!({"hostNetwork": true})), &["hostNetwork: true is not allowed"])]
#[case::host_pid(spec(&json!({"hostPID": true})), &["hostPID: true is not allowed"])]
#[case::host_ipc(spec(&json!({"hostIPC": true})), &["hostIPC: true is not allowed"])]
#[case::no_host_namespaces(spec(&json!({"hostNetwork": false, "hostPID": false, "hostIPC": false})), NONE)]
#[case::host_port(
    container(&json!({"ports": [{"containerPort": 80, "hostPort": 8080}, {"containerPort": 81}, {"containerPort": 82, "hostPort": 8082}]})),
    &["ports.hostPort of container web: 8080, 8082 may not be used"]
)]
#[case::no_host_port(container(&json!({"ports": [{"containerPort": 80}, {"containerPort": 81, "hostPort": 0}]})), NONE)]
#[case::host_port_on_the_network_of_the_node(
    json!({"spec": {"hostNetwork": true, "containers": [{"ports": [{"containerPort": 80, "hostPort": 80}]}]}}),
    &["hostNetwork: true is not allowed"]
)]
#[case::probe_host(
    container(&json!({"livenessProbe": {"httpGet": {"host": "10.0.0.1", "port": 80}}})),
    &["livenessProbe.httpGet.host of container web: 10.0.0.1 may not be set"]
)]
#[case::every_probe_host(
    container(&json!({
        "readinessProbe": {"tcpSocket": {"host": "a", "port": 80}},
        "startupProbe": {"httpGet": {"host": "b", "port": 80}},
        "lifecycle": {"postStart": {"httpGet": {"host": "c", "port": 80}}, "preStop": {"tcpSocket": {"host": "d", "port": 80}}},
    })),
    &[
        "readinessProbe.tcpSocket.host of container web: a may not be set",
        "startupProbe.httpGet.host of container web: b may not be set",
        "lifecycle.postStart.httpGet.host of container web: c may not be set",
        "lifecycle.preStop.tcpSocket.host of container web: d may not be set",
    ]
)]
#[case::no_probe_host(
    container(&json!({"livenessProbe": {"httpGet": {"port": 80, "host": ""}}, "lifecycle": {"preStop": {"sleep": {"seconds": 1}}}})),
    NONE
)]
#[case::privileged(
    on_container(&json!({"privileged": true, "allowPrivilegeEscalation": false})),
    &["securityContext.privileged of container web: true is not allowed"]
)]
#[case::not_privileged(on_container(&json!({"privileged": false})), NONE)]
#[case::proc_mount(
    on_container(&json!({"procMount": "Unmasked"})),
    &["securityContext.procMount of container web: Unmasked is not allowed, only Default"]
)]
#[case::default_proc_mount(on_container(&json!({"procMount": "Default"})), NONE)]
#[case::se_linux_type(
    on_container(&json!({"seLinuxOptions": {"type": "spc_t"}})),
    &["securityContext.seLinuxOptions.type of container web: spc_t is not allowed, only container_t, container_init_t, container_kvm_t, container_engine_t"]
)]
#[case::se_linux_user_and_role(
    on_pod(&json!({"seLinuxOptions": {"user": "u", "role": "r", "type": ""}})),
    &["securityContext.seLinuxOptions.user: u may not be set", "securityContext.seLinuxOptions.role: r may not be set"]
)]
#[case::se_linux_level(
    on_container(&json!({"seLinuxOptions": {"type": "container_t", "user": "", "role": "", "level": "s0"}})),
    NONE
)]
#[case::seccomp_on_the_pod(
    on_pod(&json!({"seccompProfile": {"type": "Unconfined"}})),
    &["securityContext.seccompProfile.type: Unconfined is not allowed, only RuntimeDefault or Localhost"]
)]
#[case::seccomp_on_the_container(
    on_container(&json!({"seccompProfile": {"type": "Unconfined"}})),
    &["securityContext.seccompProfile.type of container web: Unconfined is not allowed, only RuntimeDefault or Localhost"]
)]
#[case::seccomp_localhost(on_container(&json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "p"}})), NONE)]
#[case::app_armor_on_the_pod(
    on_pod(&json!({"appArmorProfile": {"type": "Unconfined"}})),
    &["securityContext.appArmorProfile.type: Unconfined is not allowed, only RuntimeDefault or Localhost"]
)]
#[case::app_armor_on_the_container(
    on_container(&json!({"appArmorProfile": {"type": "Unconfined"}})),
    &["securityContext.appArmorProfile.type of container web: Unconfined, here or in the annotation, is not allowed, only RuntimeDefault or Localhost"]
)]
#[case::app_armor_annotation(
    json!({"metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/web": "unconfined"}}}),
    &["securityContext.appArmorProfile.type of container web: Unconfined, here or in the annotation, is not allowed, only RuntimeDefault or Localhost"]
)]
#[case::app_armor_allowed(
    json!({
        "metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/web": "localhost/p"}},
        "spec": {"securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}}},
    }),
    NONE
)]
#[case::sysctls(
    on_pod(&json!({"sysctls": [{"name": "kernel.msgmax", "value": "1"}, {"name": "net.ipv4.tcp_rmem", "value": "1"}, {"name": "net.core.somaxconn", "value": "1"}]})),
    &["securityContext.sysctls: kernel.msgmax may not be set", "securityContext.sysctls: net.core.somaxconn may not be set"]
)]
#[case::safe_sysctls(on_pod(&json!({"sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}]})), NONE)]
#[case::host_process(
    json!({"spec": {"securityContext": {"windowsOptions": {"hostProcess": true}}, "containers": [{"securityContext": {"windowsOptions": {"hostProcess": true}}}]}}),
    &[
        "securityContext.windowsOptions.hostProcess: true is not allowed",
        "securityContext.windowsOptions.hostProcess of container web: true is not allowed",
    ]
)]
#[case::no_host_process(on_pod(&json!({"windowsOptions": {"hostProcess": false, "runAsUserName": "u"}})), NONE)]
fn of_both_levels(#[case] patch: Value, #[case] expected: &[&str]) {
    assert_eq!(findings(B, 37, &pod(&patch)), expected, "baseline");
    assert_eq!(findings(R, 37, &pod(&patch)), expected, "restricted");
}

#[rstest::rstest]
#[case::host_path(
    spec(&json!({"volumes": [{"name": "v", "emptyDir": {}}, {"name": "run", "hostPath": {"path": "/var/run"}}]})),
    &["volumes.hostPath of volume run: /var/run may not be mounted"],
    &["volumes.hostPath of volume run: this type is not allowed"]
)]
#[case::other_volumes(
    spec(&json!({"volumes": [{"name": "a", "nfs": {"server": "s", "path": "/"}}, {"name": "b", "gitRepo": {"repository": "r"}}]})),
    NONE,
    &["volumes.nfs of volume a: this type is not allowed", "volumes.gitRepo of volume b: this type is not allowed"]
)]
#[case::allowed_volumes(
    spec(&json!({"volumes": [{"name": "a", "configMap": {"name": "c"}}, {"name": "b", "csi": {"driver": "d"}}, {"name": "c", "image": {"reference": "i"}}, {"name": "d"}]})),
    NONE,
    NONE
)]
#[case::capabilities(
    on_container(&json!({"capabilities": {"add": ["NET_ADMIN", "CHOWN", "NET_BIND_SERVICE", "ALL"]}})),
    &["securityContext.capabilities.add of container web: NET_ADMIN, ALL may not be added"],
    &["securityContext.capabilities.add of container web: NET_ADMIN, CHOWN, ALL may not be added, only NET_BIND_SERVICE"]
)]
#[case::nothing_dropped(
    on_container(&json!({"capabilities": {"drop": ["KILL"], "add": ["NET_BIND_SERVICE"]}})),
    NONE,
    &["securityContext.capabilities.drop of container web: ALL must be dropped"]
)]
#[case::escalation_unset(
    on_container(&json!({"allowPrivilegeEscalation": null})),
    NONE,
    &["securityContext.allowPrivilegeEscalation of container web: it must be set to false"]
)]
#[case::escalation(
    on_container(&json!({"allowPrivilegeEscalation": true})),
    NONE,
    &["securityContext.allowPrivilegeEscalation of container web: it must be set to false"]
)]
#[case::root_on_the_pod(
    on_pod(&json!({"runAsNonRoot": false})),
    NONE,
    &["securityContext.runAsNonRoot: false is not allowed"]
)]
#[case::root_on_the_container(
    on_container(&json!({"runAsNonRoot": false})),
    NONE,
    &["securityContext.runAsNonRoot of container web: false is not allowed"]
)]
#[case::nobody_says_non_root(
    on_pod(&json!({"runAsNonRoot": null})),
    NONE,
    &["securityContext.runAsNonRoot of container web: it must be set to true, here or on the Pod"]
)]
#[case::the_container_says_non_root(
    json!({"spec": {"securityContext": {"runAsNonRoot": null}, "containers": [{"securityContext": {"runAsNonRoot": true}}]}}),
    NONE,
    NONE
)]
#[case::user_0(
    json!({"spec": {"securityContext": {"runAsUser": 0}, "containers": [{"securityContext": {"runAsUser": 0}}]}}),
    NONE,
    &["securityContext.runAsUser: 0 is not allowed", "securityContext.runAsUser of container web: 0 is not allowed"]
)]
#[case::user_1000(on_pod(&json!({"runAsUser": 1000})), NONE, NONE)]
#[case::no_seccomp(
    on_pod(&json!({"seccompProfile": null})),
    NONE,
    &["securityContext.seccompProfile.type of container web: it must be set, here or on the Pod, to RuntimeDefault or Localhost"]
)]
#[case::a_plain_pod(
    json!({"spec": {"securityContext": null, "containers": [{"securityContext": null}]}}),
    NONE,
    &[
        "securityContext.capabilities.drop of container web: ALL must be dropped",
        "securityContext.seccompProfile.type of container web: it must be set, here or on the Pod, to RuntimeDefault or Localhost",
        "securityContext.allowPrivilegeEscalation of container web: it must be set to false",
        "securityContext.runAsNonRoot of container web: it must be set to true, here or on the Pod",
    ]
)]
#[case::windows(
    json!({"spec": {
        "os": {"name": "windows"},
        "securityContext": {"seccompProfile": null},
        "containers": [{"securityContext": null}],
    }}),
    NONE,
    NONE
)]
#[case::in_a_user_namespace(
    json!({"spec": {"hostUsers": false, "securityContext": {"runAsNonRoot": false}, "containers": [{"securityContext": {"runAsUser": 0, "procMount": "Unmasked"}}]}}),
    NONE,
    &["securityContext.procMount of container web: Unmasked is not allowed, only Default"]
)]
fn of_each_level(#[case] patch: Value, #[case] baseline: &[&str], #[case] restricted: &[&str]) {
    assert_eq!(findings(B, 37, &pod(&patch)), baseline, "baseline");
    assert_eq!(findings(R, 37, &pod(&patch)), restricted, "restricted");
}

/// Pods that are denied before a version and allowed from it on, or the other way.
#[rstest::rstest]
#[case::probe_hosts(B, container(&json!({"livenessProbe": {"httpGet": {"host": "h", "port": 80}}})), 34, false)]
#[case::container_engine(B, on_pod(&json!({"seLinuxOptions": {"type": "container_engine_t"}})), 31, true)]
#[case::tcp_rmem(B, on_pod(&json!({"sysctls": [{"name": "net.ipv4.tcp_rmem", "value": "1"}]})), 32, true)]
#[case::tcp_notsent_lowat(B, on_pod(&json!({"sysctls": [{"name": "net.ipv4.tcp_notsent_lowat", "value": "1"}]})), 37, true)]
#[case::proc_mount(B, json!({"spec": {"hostUsers": false, "containers": [{"securityContext": {"procMount": "Unmasked"}}]}}), 35, true)]
#[case::root(R, json!({"spec": {"hostUsers": false, "securityContext": {"runAsNonRoot": false}}}), 35, true)]
#[case::user_0(R, json!({"spec": {"hostUsers": false, "securityContext": {"runAsUser": 0}}}), 35, true)]
#[case::image_volumes(R, spec(&json!({"volumes": [{"name": "v", "image": {"reference": "i"}}]})), 33, true)]
fn of_the_version_of_the_cluster(
    #[case] asked: Asked,
    #[case] patch: Value,
    #[case] minor: u16,
    #[case] allowed_since: bool,
) {
    let allowed = |minor| findings(asked, minor, &pod(&patch)).is_empty();
    assert_eq!(allowed(minor - 1), !allowed_since, "1.{}", minor - 1);
    assert_eq!(allowed(minor), allowed_since, "1.{minor}");
}

#[rstest::rstest]
#[case::sysctl_before(B, "v1.26", on_pod(&json!({"sysctls": [{"name": "net.ipv4.ip_local_reserved_ports", "value": "1"}]})), false)]
#[case::sysctl_since(B, "v1.27", on_pod(&json!({"sysctls": [{"name": "net.ipv4.ip_local_reserved_ports", "value": "1"}]})), true)]
#[case::latest(B, "latest", on_pod(&json!({"sysctls": [{"name": "net.ipv4.tcp_rmem", "value": "1"}]})), true)]
#[case::later_than_the_cluster(B, "v1.99", on_pod(&json!({"sysctls": [{"name": "net.ipv4.tcp_notsent_lowat", "value": "1"}]})), false)]
#[case::user_before(R, "v1.22", on_pod(&json!({"runAsUser": 0})), true)]
#[case::user_since(R, "v1.23", on_pod(&json!({"runAsUser": 0})), false)]
#[case::windows_before(R, "v1.24", json!({"spec": {"os": {"name": "windows"}, "containers": [{"securityContext": null}]}}), false)]
#[case::windows_since(R, "v1.25", json!({"spec": {"os": {"name": "windows"}, "containers": [{"securityContext": null}]}}), true)]
#[case::drop_before(R, "v1.21", on_container(&json!({"capabilities": null})), true)]
#[case::drop_since(R, "v1.22", on_container(&json!({"capabilities": null})), false)]
#[case::default_capabilities_before(R, "v1.21", on_container(&json!({"capabilities": {"add": ["CHOWN"]}})), true)]
#[case::escalation_before(R, "v1.7", on_container(&json!({"allowPrivilegeEscalation": true})), true)]
#[case::escalation_since(R, "v1.8", on_container(&json!({"allowPrivilegeEscalation": true})), false)]
#[case::seccomp_before(R, "v1.18", on_pod(&json!({"seccompProfile": {"type": "Unconfined"}})), true)]
#[case::seccomp_since(R, "v1.19", on_pod(&json!({"seccompProfile": {"type": "Unconfined"}})), false)]
#[case::seccomp_annotation(B, "v1.18", json!({"metadata": {"annotations": {"container.seccomp.security.alpha.kubernetes.io/web": "unconfined"}}}), false)]
#[case::seccomp_annotation_of_the_pod(B, "v1.18", json!({"metadata": {"annotations": {"seccomp.security.alpha.kubernetes.io/pod": "unconfined"}}}), false)]
#[case::seccomp_annotation_since(B, "v1.19", json!({"metadata": {"annotations": {"seccomp.security.alpha.kubernetes.io/pod": "unconfined"}}}), true)]
#[case::image_volumes_have_no_version(R, "v1.20", spec(&json!({"volumes": [{"name": "v", "image": {"reference": "i"}}]})), true)]
fn of_a_pinned_version(
    #[case] asked: Asked,
    #[case] version: &'static str,
    #[case] patch: Value,
    #[case] allowed: bool,
) {
    let found = findings(pinned(asked, version), 36, &pod(&patch));
    assert_eq!(found.is_empty(), allowed, "{found:?}");
}

/// The Pod first, then container by container, in their order.
#[test]
fn in_the_order_of_containers() {
    let object = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"template": {"metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/b": "unconfined"}}, "spec": {
            "hostPID": true,
            "initContainers": [{"name": "init", "image": "i", "securityContext": {"privileged": true}}],
            "containers": [
                {"name": "a", "image": "i", "ports": [{"containerPort": 1, "hostPort": 1}], "securityContext": {"privileged": true}},
                {"name": "b", "image": "i", "ports": [{"containerPort": 2, "hostPort": 2}]},
            ],
        }}},
    });
    let armor = "securityContext.appArmorProfile.type of container b: Unconfined, here or in the annotation, is not allowed, only RuntimeDefault or Localhost";
    assert_eq!(
        findings(B, 37, &object),
        [
            "hostPID: true is not allowed",
            "ports.hostPort of container a: 1 may not be used",
            "securityContext.privileged of container a: true is not allowed",
            "ports.hostPort of container b: 2 may not be used",
            armor,
            "securityContext.privileged of container init: true is not allowed",
        ]
    );
}

/// What users write is cut, and can't break a sentence into two.
#[test]
fn hostile_values() {
    let long = "x".repeat(400);
    let object = pod(&json!({"spec": {
        "securityContext": {"seLinuxOptions": {"user": "a\nb\r\nc"}},
        "containers": [{"securityContext": {"capabilities": {"drop": ["ALL"], "add": ["a\n", long]}}}],
    }}));
    assert_eq!(
        findings(B, 37, &object),
        [
            "securityContext.seLinuxOptions.user: a b  c may not be set".to_owned(),
            format!(
                "securityContext.capabilities.add of container web: a , {}… may not be added",
                "x".repeat(296)
            ),
        ]
    );
}
