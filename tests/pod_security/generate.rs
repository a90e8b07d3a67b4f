//! Pods that exercise every field of the Pod Security Standards, the same ones on every run.
//!
//! A Pod starts as one that `restricted` allows, or as a plain one. To it come variations that are
//! harmless and, to about half of the Pods, one or several that break a check.

use serde_json::{Map, Value, json};

/// A small generator of numbers (splitmix64), so that the Pods depend on the seed alone.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap()
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn pick<'t, T>(&mut self, of: &'t [T]) -> &'t T {
        &of[self.below(of.len())]
    }
}

/// For whom the Pod is made: what is harmless depends on the level.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) restricted: bool,
    pub(crate) minor: u16,
}

/// The `number`th Pod for `target`.
pub(crate) fn pod(number: u64, target: Target) -> Value {
    let mut rng = Rng::new(number.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ u64::from(target.minor));
    let mut pod = if rng.chance(6) {
        windows(&mut rng, target)
    } else {
        linux(&mut rng, target)
    };
    pod["metadata"]["name"] = json!(format!("pod-{number}"));
    pod
}

fn linux(rng: &mut Rng, target: Target) -> Value {
    let hardened = target.restricted || rng.chance(50);
    let mut pod = start(rng, hardened);
    for _ in 0..rng.below(5) {
        let harmless = *rng.pick(HARMLESS);
        harmless(&mut pod, rng, target);
    }
    if rng.chance(55) {
        let breaks = if rng.chance(80) { 1 } else { 2 + rng.below(3) };
        for _ in 0..breaks {
            let violating = if target.restricted && rng.chance(55) {
                *rng.pick(AGAINST_RESTRICTED)
            } else {
                *rng.pick(AGAINST_BASELINE)
            };
            violating(&mut pod, rng, target);
        }
    }
    tidy(&mut pod);
    pod
}

/// A Pod that its level allows.
fn start(rng: &mut Rng, restricted: bool) -> Value {
    let mut containers = Vec::new();
    for n in 0..=rng.below(3) {
        containers.push(json!({"name": format!("c{n}"), "image": "registry.k8s.io/pause:3.10"}));
    }
    let mut init = Vec::new();
    for n in 0..rng.below(3) {
        let mut container = json!({"name": format!("i{n}"), "image": "registry.k8s.io/pause:3.10"});
        if rng.chance(40) {
            container["restartPolicy"] = json!("Always");
        }
        init.push(container);
    }
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {},
        "spec": {"containers": containers},
    });
    if !init.is_empty() {
        pod["spec"]["initContainers"] = Value::Array(init);
    }
    if rng.chance(20) {
        pod["spec"]["securityContext"] = json!({});
    }
    if !restricted {
        return pod;
    }
    let (pod_user, pod_profile) = (rng.chance(50), rng.chance(50));
    if pod_user {
        context(&mut pod["spec"])["runAsNonRoot"] = json!(true);
    }
    if pod_profile {
        context(&mut pod["spec"])["seccompProfile"] = seccomp(rng);
    }
    for_all(&mut pod, |container| {
        let own = rng.chance(30);
        let context = context(container);
        context["allowPrivilegeEscalation"] = json!(false);
        context["capabilities"] = json!({"drop": *rng.pick(DROPS)});
        if own || !pod_user {
            context["runAsNonRoot"] = json!(true);
        }
        if own || !pod_profile {
            context["seccompProfile"] = seccomp(rng);
        }
    });
    pod
}

const DROPS: &[&[&str]] = &[&["ALL"], &["NET_RAW", "ALL"], &["ALL", "KILL"]];

fn seccomp(rng: &mut Rng) -> Value {
    rng.pick(&[
        json!({"type": "RuntimeDefault"}),
        json!({"type": "Localhost", "localhostProfile": "profiles/audit.json"}),
    ])
    .clone()
}

fn context(of: &mut Value) -> &mut Value {
    if !of["securityContext"].is_object() {
        of["securityContext"] = json!({});
    }
    &mut of["securityContext"]
}

fn for_all(pod: &mut Value, mut change: impl FnMut(&mut Value)) {
    for list in ["containers", "initContainers"] {
        for container in pod["spec"][list].as_array_mut().into_iter().flatten() {
            change(container);
        }
    }
}

/// Some container, init containers included.
fn container<'p>(pod: &'p mut Value, rng: &mut Rng) -> &'p mut Value {
    let list = if pod["spec"]["initContainers"].is_array() && rng.chance(40) {
        "initContainers"
    } else {
        "containers"
    };
    let containers = pod["spec"][list].as_array_mut().unwrap();
    let index = rng.below(containers.len());
    &mut containers[index]
}

/// The security context of the Pod or of some container.
fn some_context<'p>(pod: &'p mut Value, rng: &mut Rng) -> &'p mut Value {
    if rng.chance(40) {
        context(&mut pod["spec"])
    } else {
        context(container(pod, rng))
    }
}

fn push(list: &mut Value, item: Value) {
    if !list.is_array() {
        *list = json!([]);
    }
    list.as_array_mut().unwrap().push(item);
}

fn set(of: &mut Value, field: &str, value: Value) {
    if !of.is_object() {
        *of = Value::Object(Map::new());
    }
    of[field] = value;
}

fn volume(pod: &mut Value, kind: &str, source: Value) {
    let number = pod["spec"]["volumes"].as_array().map_or(0, Vec::len);
    let mut volume = json!({"name": format!("v{number}")});
    volume[kind] = source;
    push(&mut pod["spec"]["volumes"], volume);
}

fn port(container: &mut Value, rng: &mut Rng, host: Option<usize>) {
    let number = 1024 + rng.below(60_000);
    let mut port = json!({"containerPort": number});
    if let Some(host) = host {
        port["hostPort"] = json!(if host == 0 { 0 } else { number });
    }
    push(&mut container["ports"], port);
}

type Variation = fn(&mut Value, &mut Rng, Target);

/// What is allowed at the level of the target.
const HARMLESS: &[Variation] = &[
    |pod, rng, _| pod["spec"][*rng.pick(HOST_NAMESPACES)] = json!(false),
    |pod, rng, target| {
        let (kind, source) = harmless_volume(rng, target);
        volume(pod, kind, source);
    },
    |pod, rng, target| {
        let (kind, source) = harmless_volume(rng, target);
        volume(pod, kind, source);
    },
    |pod, rng, _| {
        let host = [None, Some(0)][rng.below(2)];
        port(container(pod, rng), rng, host);
    },
    |pod, rng, _| {
        let host = *rng.pick(&[None, Some("")]);
        let handler = handler(rng, host);
        probe(pod, rng, handler);
    },
    |pod, rng, _| context(container(pod, rng))["privileged"] = json!(false),
    |pod, rng, _| context(container(pod, rng))["procMount"] = json!("Default"),
    |pod, rng, target| {
        let allowed: &[&str] = if target.restricted {
            &["NET_BIND_SERVICE"]
        } else {
            DEFAULT_CAPABILITIES
        };
        let capability = *rng.pick(allowed);
        add_capability(container(pod, rng), capability);
    },
    |pod, rng, _| {
        let kind = *rng.pick(&["", "container_t", "container_init_t", "container_kvm_t"]);
        let options = &mut some_context(pod, rng)["seLinuxOptions"];
        set(options, "type", json!(kind));
        if rng.chance(30) {
            set(options, "level", json!("s0:c123,c456"));
            set(options, "user", json!(""));
            set(options, "role", json!(""));
        }
    },
    |pod, rng, _| some_context(pod, rng)["seccompProfile"] = seccomp(rng),
    |pod, rng, _| {
        some_context(pod, rng)["appArmorProfile"] = rng
            .pick(&[
                json!({"type": "RuntimeDefault"}),
                json!({"type": "Localhost", "localhostProfile": "docker-nginx"}),
            ])
            .clone();
    },
    |pod, rng, _| {
        let profile = *rng.pick(&["runtime/default", "localhost/docker-nginx", ""]);
        app_armor_annotation(pod, rng, profile);
    },
    seccomp_annotation,
    |pod, rng, _| {
        let name = *rng.pick(&SYSCTLS[..5]);
        sysctl(pod, name);
    },
    |pod, rng, _| some_context(pod, rng)["runAsUser"] = json!(1 + rng.below(70_000)),
    |pod, rng, _| some_context(pod, rng)["runAsGroup"] = json!(0),
    |pod, rng, _| some_context(pod, rng)["runAsNonRoot"] = json!(true),
    |pod, rng, _| pod["spec"]["hostUsers"] = json!(rng.chance(30)),
    |pod, rng, _| context(container(pod, rng))["allowPrivilegeEscalation"] = json!(false),
    |pod, _, _| pod["spec"]["os"] = json!({"name": "linux"}),
    |pod, rng, target| {
        if !target.restricted {
            context(container(pod, rng))["allowPrivilegeEscalation"] = json!(true);
        }
    },
    |pod, rng, target| {
        if !target.restricted {
            some_context(pod, rng)["runAsNonRoot"] = json!(false);
        }
    },
    |pod, rng, target| {
        if !target.restricted {
            some_context(pod, rng)["runAsUser"] = json!(0);
        }
    },
];

/// What breaks a check of `baseline`, in some version of it.
const AGAINST_BASELINE: &[Variation] = &[
    |pod, rng, _| pod["spec"][*rng.pick(HOST_NAMESPACES)] = json!(true),
    |pod, rng, _| {
        let path = *rng.pick(&["/", "/var/run/docker.sock", "/etc"]);
        volume(pod, "hostPath", json!({"path": path}));
    },
    |pod, rng, _| port(container(pod, rng), rng, Some(1)),
    |pod, rng, _| {
        let host = *rng.pick(&["127.0.0.1", "example.com", "10.0.0.1"]);
        let handler = handler(rng, Some(host));
        probe(pod, rng, handler);
    },
    |pod, rng, _| {
        let context = context(container(pod, rng));
        context["privileged"] = json!(true);
        // The API server refuses the two together.
        context
            .as_object_mut()
            .unwrap()
            .remove("allowPrivilegeEscalation");
    },
    |pod, rng, _| {
        pod["spec"]["hostUsers"] = json!(false);
        context(container(pod, rng))["procMount"] = json!("Unmasked");
    },
    |pod, rng, _| {
        let capability = *rng.pick(&[
            "NET_RAW",
            "NET_ADMIN",
            "SYS_TIME",
            "ALL",
            "chown",
            "CAP_KILL",
        ]);
        add_capability(container(pod, rng), capability);
    },
    |pod, rng, _| {
        let kind = *rng.pick(&["spc_t", "container_engine_t", "Container_t"]);
        set(
            &mut some_context(pod, rng)["seLinuxOptions"],
            "type",
            json!(kind),
        );
    },
    |pod, rng, _| {
        let field = *rng.pick(&["user", "role"]);
        set(
            &mut some_context(pod, rng)["seLinuxOptions"],
            field,
            json!("system_u"),
        );
    },
    |pod, rng, _| some_context(pod, rng)["seccompProfile"] = json!({"type": "Unconfined"}),
    |pod, rng, _| some_context(pod, rng)["appArmorProfile"] = json!({"type": "Unconfined"}),
    |pod, rng, _| app_armor_annotation(pod, rng, "unconfined"),
    |pod, rng, _| {
        let name = *rng.pick(&SYSCTLS[5..]);
        sysctl(pod, name);
    },
];

/// What breaks a check of `restricted` alone.
const AGAINST_RESTRICTED: &[Variation] = &[
    |pod, rng, _| {
        let (kind, source) = rng.pick(&restricted_volumes()).clone();
        volume(pod, kind, source);
    },
    |pod, rng, _| {
        let context = context(container(pod, rng));
        if rng.chance(50) {
            context["allowPrivilegeEscalation"] = json!(true);
        } else {
            context
                .as_object_mut()
                .unwrap()
                .remove("allowPrivilegeEscalation");
        }
    },
    |pod, rng, _| {
        let dropped: Value = rng
            .pick(&[
                json!(null),
                json!([]),
                json!(["KILL"]),
                json!(["all"]),
                json!(["CAP_ALL"]),
            ])
            .clone();
        set(
            &mut context(container(pod, rng))["capabilities"],
            "drop",
            dropped,
        );
    },
    |pod, rng, _| {
        let capability = *rng.pick(&["CHOWN", "SETUID", "net_bind_service"]);
        add_capability(container(pod, rng), capability);
    },
    |pod, rng, _| some_context(pod, rng)["runAsNonRoot"] = json!(false),
    |pod, rng, _| {
        let context = some_context(pod, rng);
        context.as_object_mut().unwrap().remove("runAsNonRoot");
    },
    |pod, rng, _| some_context(pod, rng)["runAsUser"] = json!(0),
    |pod, rng, _| {
        let context = some_context(pod, rng);
        context.as_object_mut().unwrap().remove("seccompProfile");
    },
    |pod, rng, _| {
        context(container(pod, rng));
        let mut fresh = json!({"name": "fresh", "image": "registry.k8s.io/pause:3.10"});
        if rng.chance(50) {
            fresh["securityContext"] = json!({});
        }
        push(&mut pod["spec"]["containers"], fresh);
    },
];

const HOST_NAMESPACES: &[&str] = &["hostNetwork", "hostPID", "hostIPC"];

const DEFAULT_CAPABILITIES: &[&str] = &[
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// The first five are allowed in every version, the others in some or none.
const SYSCTLS: &[&str] = &[
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "net.ipv4.tcp_slow_start_after_idle",
    "net.ipv4.tcp_notsent_lowat",
    "kernel.msgmax",
    "net.core.somaxconn",
];

fn sysctl(pod: &mut Value, name: &str) {
    let sysctls = &mut context(&mut pod["spec"])["sysctls"];
    let there = sysctls
        .as_array()
        .into_iter()
        .flatten()
        .any(|s| s["name"] == name);
    if !there {
        push(sysctls, json!({"name": name, "value": "1"}));
    }
}

fn add_capability(container: &mut Value, capability: &str) {
    let capabilities = &mut context(container)["capabilities"];
    if !capabilities.is_object() {
        *capabilities = json!({});
    }
    push(&mut capabilities["add"], json!(capability));
}

fn app_armor_annotation(pod: &mut Value, rng: &mut Rng, profile: &str) {
    let name = container(pod, rng)["name"].as_str().unwrap().to_owned();
    let key = format!("container.apparmor.security.beta.kubernetes.io/{name}");
    set(&mut pod["metadata"]["annotations"], &key, json!(profile));
}

/// Versions of the standards before 1.19 look at it, API servers no more.
fn seccomp_annotation(pod: &mut Value, rng: &mut Rng, _: Target) {
    let key = if rng.chance(40) {
        "seccomp.security.alpha.kubernetes.io/pod".to_owned()
    } else {
        let name = container(pod, rng)["name"].as_str().unwrap().to_owned();
        format!("container.seccomp.security.alpha.kubernetes.io/{name}")
    };
    let profile = *rng.pick(&[
        "unconfined",
        "runtime/default",
        "docker/default",
        "localhost/p",
    ]);
    set(&mut pod["metadata"]["annotations"], &key, json!(profile));
}

fn handler(rng: &mut Rng, host: Option<&str>) -> Value {
    let kind = *rng.pick(&["httpGet", "tcpSocket"]);
    let mut action = json!({"port": 8080});
    if let Some(host) = host {
        action["host"] = json!(host);
    }
    json!({kind: action})
}

fn probe(pod: &mut Value, rng: &mut Rng, handler: Value) {
    // Only sidecars among init containers may have them.
    let containers = pod["spec"]["containers"].as_array().unwrap().len();
    let sidecar = pod["spec"]["initContainers"]
        .as_array()
        .and_then(|init| init.iter().position(|c| c["restartPolicy"] == "Always"));
    let container = match sidecar {
        Some(index) if rng.chance(40) => &mut pod["spec"]["initContainers"][index],
        _ => &mut pod["spec"]["containers"][rng.below(containers)],
    };
    match rng.below(5) {
        0 => container["livenessProbe"] = handler,
        1 => container["readinessProbe"] = handler,
        2 => container["startupProbe"] = handler,
        3 => set(&mut container["lifecycle"], "postStart", handler),
        _ => set(&mut container["lifecycle"], "preStop", handler),
    }
}

fn harmless_volume(rng: &mut Rng, target: Target) -> (&'static str, Value) {
    let mut volumes = vec![
        ("emptyDir", json!({})),
        ("configMap", json!({"name": "c"})),
        ("secret", json!({"secretName": "s"})),
        (
            "downwardAPI",
            json!({"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]}),
        ),
        (
            "projected",
            json!({"sources": [{"configMap": {"name": "c"}}]}),
        ),
        ("csi", json!({"driver": "csi.example.com"})),
        ("persistentVolumeClaim", json!({"claimName": "c"})),
        (
            "ephemeral",
            json!({"volumeClaimTemplate": {"spec": {
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
            }}}),
        ),
    ];
    // On by default since 1.35.
    if target.minor >= 35 {
        volumes.push(("image", json!({"reference": "registry.k8s.io/pause:3.10"})));
    }
    if !target.restricted {
        volumes.extend(restricted_volumes());
    }
    rng.pick(&volumes).clone()
}

/// Every type of volume that `restricted` denies and `baseline` allows.
fn restricted_volumes() -> Vec<(&'static str, Value)> {
    vec![
        ("gcePersistentDisk", json!({"pdName": "d"})),
        ("awsElasticBlockStore", json!({"volumeID": "d"})),
        (
            "gitRepo",
            json!({"repository": "https://example.com/r.git"}),
        ),
        ("nfs", json!({"server": "nfs.example.com", "path": "/"})),
        (
            "iscsi",
            json!({"targetPortal": "10.0.0.1:3260", "iqn": "iqn.2001-04.com.example:storage", "lun": 0}),
        ),
        ("glusterfs", json!({"endpoints": "e", "path": "p"})),
        ("rbd", json!({"monitors": ["10.0.0.1:6789"], "image": "i"})),
        ("flexVolume", json!({"driver": "example.com/d"})),
        ("cinder", json!({"volumeID": "d"})),
        ("cephfs", json!({"monitors": ["10.0.0.1:6789"]})),
        ("flocker", json!({"datasetName": "d"})),
        ("fc", json!({"targetWWNs": ["50060e801049cfd1"], "lun": 0})),
        ("azureFile", json!({"secretName": "s", "shareName": "n"})),
        ("vsphereVolume", json!({"volumePath": "p"})),
        (
            "quobyte",
            json!({"registry": "10.0.0.1:7861", "volume": "v"}),
        ),
        (
            "azureDisk",
            json!({"diskName": "d", "diskURI": "https://blob/vhds/d.vhd"}),
        ),
        ("portworxVolume", json!({"volumeID": "d"})),
        ("photonPersistentDisk", json!({"pdID": "d"})),
        (
            "scaleIO",
            json!({"gateway": "https://g", "system": "s", "volumeName": "v", "secretRef": {"name": "s"}}),
        ),
        ("storageos", json!({"volumeName": "v"})),
    ]
}

/// A Pod for Windows, where the API server refuses most of the fields.
fn windows(rng: &mut Rng, target: Target) -> Value {
    let mut pod = start(rng, false);
    pod["spec"]["os"] = json!({"name": "windows"});
    if target.restricted || rng.chance(50) {
        context(&mut pod["spec"])["runAsNonRoot"] = json!(!rng.chance(15));
    }
    if rng.chance(40) {
        let options = json!({"runAsUserName": "ContainerUser", "hostProcess": false});
        some_context(&mut pod, rng)["windowsOptions"] = options;
    }
    match rng.below(8) {
        // All containers must be host processes, on the network of the host.
        0 => {
            pod["spec"]["hostNetwork"] = json!(true);
            context(&mut pod["spec"])["windowsOptions"] = json!({"hostProcess": true});
            for_all(&mut pod, |container| {
                context(container)
                    .as_object_mut()
                    .unwrap()
                    .remove("windowsOptions");
            });
        }
        1 => {
            pod["spec"]["hostNetwork"] = json!(true);
            context(&mut pod["spec"])
                .as_object_mut()
                .unwrap()
                .remove("windowsOptions");
            for_all(&mut pod, |container| {
                context(container)["windowsOptions"] = json!({"hostProcess": true});
            });
        }
        2 => port(container(&mut pod, rng), rng, Some(1)),
        3 => volume(&mut pod, "hostPath", json!({"path": "C:\\"})),
        _ => {}
    }
    pod
}

/// Takes out what the API server would refuse by itself.
fn tidy(pod: &mut Value) {
    let spec = &mut pod["spec"];
    let is = |value: &Value| value == &json!(true);
    if HOST_NAMESPACES.iter().any(|field| is(&spec[*field])) {
        spec.as_object_mut().unwrap().remove("hostUsers");
    }
    let (network, ipc) = (is(&spec["hostNetwork"]), is(&spec["hostIPC"]));
    if let Some(sysctls) = spec["securityContext"]["sysctls"].as_array_mut() {
        sysctls.retain(|sysctl| {
            let name = sysctl["name"].as_str().unwrap();
            !(network && name.starts_with("net.") || ipc && name.starts_with("kernel."))
        });
    }
    let user_namespace = spec["hostUsers"] == json!(false);
    let pod_profile = spec["securityContext"]["appArmorProfile"].clone();
    let pod_seccomp = spec["securityContext"]["seccompProfile"].clone();
    let mut annotations = pod["metadata"]["annotations"].clone();
    for_all(pod, |container| {
        if container["securityContext"].is_object() {
            let context = container["securityContext"].as_object_mut().unwrap();
            if !user_namespace && context.get("procMount") == Some(&json!("Unmasked")) {
                context.remove("procMount");
            }
            if context.get("privileged") == Some(&json!(true)) {
                context.retain(|key, value| {
                    key != "allowPrivilegeEscalation" || value != &json!(false)
                });
            }
        } else {
            container.as_object_mut().unwrap().remove("securityContext");
        }
        // A field and an annotation must say the same.
        let name = container["name"].as_str().unwrap();
        let app_armor = format!("container.apparmor.security.beta.kubernetes.io/{name}");
        let seccomp = format!("container.seccomp.security.alpha.kubernetes.io/{name}");
        let own = &container["securityContext"];
        if let Some(annotations) = annotations.as_object_mut() {
            if pod_profile.is_object() || own["appArmorProfile"].is_object() {
                annotations.remove(&app_armor);
            }
            if own["seccompProfile"].is_object() {
                annotations.remove(&seccomp);
            }
            if pod_seccomp.is_object() {
                annotations.remove("seccomp.security.alpha.kubernetes.io/pod");
            }
        }
        prune(container);
    });
    if annotations.is_object() {
        pod["metadata"]["annotations"] = annotations;
    }
    prune(pod);
}

/// Indexing leaves `null` where nothing was.
fn prune(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(prune);
        }
        Value::Array(items) => items.iter_mut().for_each(prune),
        _ => {}
    }
}
