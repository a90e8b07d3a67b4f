//! Offline verdicts equal those of API servers, for generated objects.

use std::collections::BTreeMap;

use boundary_operator::api::{Action, BOUNDARY_LABEL, BoundaryPolicy};
use boundary_operator::evaluate::{Evaluator, Kind, Operation, Request};
use control_plane::{Version, eventually};
use futures::StreamExt as _;
use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::cases::rules;
use crate::server::{Place, SOON, Said, Server, User};
use crate::support;
use crate::workload::{pod, pod_spec, with_pod_spec};

/// How many objects are judged, for each version.
const CREATED: usize = 1_500;
const CHANGED: usize = 900;

/// How many objects are stored, to be changed.
const STORED: usize = 90;

const IN_FLIGHT: usize = 32;

/// The user who asks, and a group that is exempt from a rule.
const USERS: &[&str] = &["alice", "system:serviceaccount:ci:builder"];
const GROUPS: &[&[&str]] = &[&[], &["ops"], &["dev", "ops"]];
const NAMESPACES: &[(&str, Option<&str>)] = &[
    ("parity", Some("parity")),
    ("parity-builds", Some("parity")),
    ("parity-outside", None),
];

/// Numbers from a seed, the same everywhere (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap()
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}

fn policies() -> Vec<BoundaryPolicy> {
    let policy = |name: &str, json: Value| support::policy(name, "parity", rules(json));
    let mut labels = policy(
        "labels",
        json!({"requiredLabels": {"labels": {"team": "web", "owner": "", "acme.io/Tier_1": "a"}}}),
    );
    labels.spec.exemptions = serde_json::from_value(json!([
        {"reason": "a", "rules": ["RequiredLabels"], "groups": ["ops"], "namespaces": ["parity"]},
    ]))
    .unwrap();
    let mut images = policy(
        "images",
        json!({
            "allowedRegistries": {"registries": [
                "ghcr.io/acme", "docker.io/library/", "registry:5000", "a/b/c/d/e/f/g/h",
                "ghcr.io/acme/web:1.4", "[fd00::1]:5000/x",
            ]},
            "disallowLatestTag": {},
        }),
    );
    images.spec.exemptions = serde_json::from_value(json!([
        {"reason": "b", "rules": ["DisallowLatestTag"], "namespaces": ["parity-builds"]},
        {"reason": "c", "rules": ["AllowedRegistries", "DisallowLatestTag"],
         "images": ["nginx", "quay.io/x/"], "users": ["system:serviceaccount:ci:builder"]},
    ]))
    .unwrap();
    let mut warn = policy(
        "warn",
        json!({"disallowLatestTag": {}, "requiredLabels": {"labels": {"team": ""}}}),
    );
    warn.spec.action = Action::Warn;
    vec![
        labels,
        images,
        warn,
        policy("z", json!({"disallowLatestTag": {}})),
    ]
}

fn image(random: &mut Random, template: bool) -> Value {
    if template && random.one_in(20) {
        return random.pick(&[Value::Null, json!("")]).clone();
    }
    let registry = random.pick(&[
        "",
        "",
        "ghcr.io/acme/",
        "ghcr.io/acme-tools/",
        "docker.io/library/",
        "registry:5000/",
        "registry:5000/team/",
        "GHCR.io/acme/",
        "quay.io/x/",
        "a/b/c/d/e/f/g/h/",
        "a/b/c/d/e/f/g/",
        "[fd00::1]:5000/x/",
        "ghcr.io//acme/",
        "/",
        "ghcr.io/acme//",
    ]);
    let name = random.pick(&[
        "web",
        "nginx",
        "h",
        "acme",
        "x/y",
        "é…😀",
        "a'b\"c\\",
        "${x}",
        "a b",
        "l\ni",
    ]);
    let tag = random.pick(&[
        "",
        ":1.27",
        ":latest",
        ":",
        "@sha256:0123",
        ":latest@sha256:0123",
        "@latest",
        "@sha256:",
        "@:abc",
        ":latest-alpine",
        ":LATEST",
        "@a:b@c:d",
        ":1.4",
        ":1@sha256:0/1",
        ":latest:latest",
    ]);
    let mut image = format!("{registry}{name}{tag}");
    if random.one_in(25) {
        image = format!(
            "{image}{}",
            random
                .pick(&["x", "😀", "/"])
                .repeat(290 + random.below(30))
        );
    }
    if random.one_in(40) {
        image = random
            .pick(&[
                "ghcr.io/acme",
                "ghcr.io/acme/web:1.4",
                "nginx",
                "registry:5000",
            ])
            .to_string();
    }
    json!(image)
}

fn containers(random: &mut Random, prefix: &str, count: usize, template: bool) -> Value {
    (0..count)
        .map(|n| {
            let mut container = json!({"name": format!("{prefix}{n}")});
            // A field that is null is as one that is missing.
            container["image"] = image(random, template);
            if container["image"].is_null() && random.one_in(2) {
                container.as_object_mut().unwrap().remove("image");
            }
            container
        })
        .collect()
}

fn labels(random: &mut Random) -> Value {
    if random.one_in(6) {
        return random.pick(&[Value::Null, json!({})]).clone();
    }
    let mut labels = json!({});
    for key in ["team", "owner", "acme.io/Tier_1", "app", "TEAM"] {
        if !random.one_in(3) {
            labels[key] =
                json!(random.pick(&["web", "web", "a", "api", "", "Web", "<unset>"][..6]));
        }
    }
    labels
}

fn generate(random: &mut Random, v: Version, kind: Kind, name: &str) -> Value {
    let template = kind != Kind::Pod;
    let count = if random.one_in(15) {
        12
    } else {
        1 + random.below(3)
    };
    let mut spec = json!({"containers": containers(random, "c", count, template)});
    if random.one_in(3) {
        let count = random.below(3);
        spec["initContainers"] = containers(random, "i", count, template);
    }
    // Before, the field is dropped, and an evaluation offline doesn't know.
    if v == Version::V1_37 && random.one_in(4) {
        let mut volumes = vec![json!({"name": "e", "emptyDir": {}})];
        for n in 0..random.below(3) {
            let mut volume = json!({"name": format!("v{n}"), "image": {}});
            let reference = image(random, template);
            if !reference.is_null() {
                volume["image"]["reference"] = reference;
            }
            volumes.push(volume);
        }
        spec["volumes"] = json!(volumes);
    }
    let mut object = with_pod_spec(kind, name, &spec);
    // A Job without labels gets those of its template.
    if let Some(template) = object.pointer_mut("/spec/template/metadata/labels")
        && random.one_in(3)
    {
        template["team"] = json!("web");
        template["owner"] = json!("template");
    }
    let labels = labels(random);
    if !labels.is_null() || random.one_in(2) {
        object["metadata"]["labels"] = labels;
    }
    object
}

/// What is asked of both.
struct Case {
    operation: Operation,
    sub_resource: &'static str,
    namespace: &'static str,
    user: &'static str,
    groups: &'static [&'static str],
    object: Value,
    old: Option<Value>,
}

impl Case {
    fn new(
        random: &mut Random,
        namespace: &'static str,
        object: Value,
        old: Option<Value>,
    ) -> Self {
        Self {
            operation: old
                .as_ref()
                .map_or(Operation::Create, |_| Operation::Update),
            sub_resource: "",
            namespace,
            user: *random.pick::<&str>(USERS),
            groups: *random.pick::<&[&str]>(GROUPS),
            object,
            old,
        }
    }

    /// Changes a stored object, or nothing about it that counts.
    fn change(random: &mut Random, v: Version, namespace: &'static str, old: &Value) -> Self {
        let kind = Kind::of(old).unwrap();
        let mut new = old.clone();
        let mut sub_resource = "";
        match random.below(6) {
            0 => new["metadata"]["annotations"] = json!({"a": "b"}),
            1 => new["metadata"]["labels"] = labels(random),
            2 if kind == Kind::Pod => {
                sub_resource = "ephemeralcontainers";
                let count = 1 + random.below(2);
                let mut added = containers(random, "e", count, false);
                std::mem::swap(&mut new["spec"]["ephemeralContainers"], &mut added);
            }
            2 if kind != Kind::Job => {
                let generated = generate(random, v, kind, "generated");
                *pod_spec(&mut new) = pod_spec(&mut generated.clone()).clone();
            }
            _ => {
                if kind != Kind::Job {
                    let image = image(random, kind != Kind::Pod);
                    pod_spec(&mut new)["containers"][0]["image"] = image;
                }
                if random.one_in(2) {
                    new["metadata"]["labels"] = labels(random);
                }
            }
        }
        let mut case = Self::new(random, namespace, new, Some(old.clone()));
        case.sub_resource = sub_resource;
        case
    }

    /// The refusal and the warnings, offline.
    fn offline(&self, evaluator: &Evaluator, boundary: Option<&str>) -> (Vec<Said>, Vec<Said>) {
        let labels = boundary.map(|b| (BOUNDARY_LABEL.to_owned(), b.to_owned()));
        let labels: BTreeMap<_, _> = labels.into_iter().collect();
        let groups: Vec<_> = self.groups.iter().map(|&group| group.to_owned()).collect();
        let request = Request {
            kind: Kind::of(&self.object).unwrap(),
            sub_resource: self.sub_resource,
            operation: self.operation,
            object: &self.object,
            old_object: self.old.as_ref(),
            namespace: self.namespace,
            namespace_labels: &labels,
            user: self.user,
            groups: &groups,
        };
        let (mut refusals, mut warnings) = (Vec::new(), Vec::new());
        for finding in evaluator.judge(&request).unwrap() {
            let said = Said {
                object: finding.object,
                message: finding.message,
            };
            match finding.action {
                Action::Deny => refusals.push(said),
                Action::Warn => warnings.push(said),
                Action::Audit => {}
            }
        }
        (refusals, warnings)
    }

    /// The same, from an API server. None: the object is invalid, whatever the policies say.
    async fn online(&self, server: &Server) -> Option<(Vec<Said>, Vec<Said>)> {
        let user = User {
            name: self.user,
            groups: self.groups,
        };
        let answer = match self.operation {
            Operation::Create => server.create_as(user, self.namespace, &self.object).await,
            Operation::Update => {
                let place = Place::of(self.namespace, &self.object).sub_resource(self.sub_resource);
                let path = format!("{}?dryRun=All", place.path());
                server
                    .send(user, Method::PUT, &path, Some(&self.object))
                    .await
            }
        };
        if answer.status == StatusCode::UNPROCESSABLE_ENTITY {
            return None;
        }
        let refusal = answer.refusal();
        let (refusals, warnings) = answer.said().into_iter().partition(|said| {
            Some(&said.message) == refusal.as_ref() && said.object == "parity.boundarypolicy.dev"
        });
        Some((refusals, warnings))
    }
}

/// Stores objects in every namespace; the boundaries come later.
async fn store(server: &Server, random: &mut Random) -> Vec<(&'static str, Value)> {
    let mut stored = Vec::new();
    for (namespace, _) in NAMESPACES {
        server.namespace(namespace, None).await;
    }
    while stored.len() < STORED {
        let kind = *random.pick(&Kind::ALL);
        let (namespace, _) = *random.pick(NAMESPACES);
        let name = format!("stored{}", stored.len());
        let object = generate(random, server.version, kind, &name);
        let path = crate::server::collection(namespace, kind);
        let answer = server.admin(Method::POST, &path, Some(&object)).await;
        if answer.status.is_success() {
            stored.push((namespace, answer.body));
        }
    }
    stored
}

#[rstest::rstest]
#[tokio::test(flavor = "multi_thread")]
async fn offline_and_online(#[values(Version::V1_30, Version::V1_34, Version::V1_37)] v: Version) {
    let seed = std::env::var("PARITY_SEED").map_or(20_261_130, |seed| seed.parse().unwrap());
    eprintln!("{v}: PARITY_SEED={seed}");
    let mut random = Random(seed);
    let server = Server::of(v).await;
    let stored = store(&server, &mut random).await;
    let evaluator = Evaluator::new(&server.install(&policies()).await).unwrap();
    for &(namespace, boundary) in NAMESPACES {
        server.relabel(namespace, boundary).await;
        eventually("the namespace is in its boundary", SOON, async || {
            let answer = server.create(namespace, &pod("x", "quay.io/y:1")).await;
            (answer.denied() == boundary.is_some()).then_some(())
        })
        .await;
    }

    let mut cases = Vec::new();
    for n in 0..CREATED {
        let kind = *random.pick(&Kind::ALL);
        let (namespace, _) = *random.pick(NAMESPACES);
        let object = generate(&mut random, v, kind, &format!("new{n}"));
        cases.push(Case::new(&mut random, namespace, object, None));
    }
    for _ in 0..CHANGED {
        let (namespace, old) = random.pick(&stored).clone();
        cases.push(Case::change(&mut random, v, namespace, &old));
    }

    let answers: Vec<_> = futures::stream::iter(&cases)
        .map(|case| case.online(&server))
        .buffered(IN_FLIGHT)
        .collect()
        .await;
    let (mut compared, mut refused, mut warned, mut different) = (0, 0, 0, 0);
    for (case, online) in cases.iter().zip(answers) {
        let Some(online) = online else { continue };
        let boundaries = NAMESPACES.iter();
        let (_, boundary) = boundaries
            .clone()
            .find(|(name, _)| *name == case.namespace)
            .unwrap();
        let offline = case.offline(&evaluator, *boundary);
        compared += 1;
        refused += usize::from(!online.0.is_empty());
        warned += usize::from(!online.1.is_empty());
        if offline != online {
            different += 1;
            eprintln!(
                "{v}: {:?} {} by {} {:?} in {}\nobject: {}\nold: {}\noffline: {offline:#?}\n\
                 online: {online:#?}",
                case.operation,
                case.sub_resource,
                case.user,
                case.groups,
                case.namespace,
                case.object,
                case.old.as_ref().unwrap_or(&Value::Null),
            );
        }
    }
    eprintln!("{v}: {compared} compared, {refused} refused, {warned} warned, {different} differ");
    assert_eq!(different, 0, "of {compared}");
    // The objects are such that every verdict is met, and often.
    assert!(compared >= 2_000, "{compared}");
    assert!(
        refused > compared / 4 && refused < compared * 9 / 10,
        "{refused} of {compared}"
    );
    assert!(warned > compared / 10, "{warned} of {compared}");
}
