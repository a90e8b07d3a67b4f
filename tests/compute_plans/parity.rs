//! The same cases, put to the decision, to the HTTP API and to the admission of the API server: the
//! same verdict, in the same words.

use boundary_operator::api::{Action, BoundaryPolicy};
use boundary_operator::plans::Slot;
use control_plane::Version;
use fastrand::Rng;
use futures::{StreamExt as _, stream};
use http::Method;
use serde_json::{Value, json};

use crate::admission::{collection, object, refusal, server};
use crate::api::Known;
use crate::client::check;
use crate::offline::compiled;
use crate::server::Server;
use crate::world::{policy, said, slot, types};

const BOUNDARIES: usize = 25;
const CASES: usize = 200;

/// Requests at the same time.
const TOGETHER: usize = 16;

const KINDS: [(&str, &str); 7] = [
    ("app", "apps"),
    ("container-instance", "containerinstances"),
    ("postgresql", "postgresqls"),
    ("sql-server", "sqlservers"),
    ("qdrant", "qdrants"),
    ("valkey", "valkeys"),
    ("function", "functions"),
];

const PLANS: [&str; 6] = [
    "small",
    "medium",
    "large",
    "huge",
    "no-such-plan",
    "it's, \"x\"",
];

struct Case {
    of: &'static str,
    resource: &'static str,
    wanted: Vec<Slot>,
    /// None: it is created.
    held: Option<Vec<Slot>>,
}

fn plan(random: &mut Rng) -> Option<&'static str> {
    (random.u8(..8) > 0).then(|| PLANS[random.usize(..PLANS.len())])
}

fn slots(random: &mut Rng, of: &str) -> Vec<Slot> {
    if of != "container-instance" {
        return vec![slot(None, plan(random))];
    }
    let part = |random: &mut Rng| {
        let key = ["web", "worker", "cron", "db"][random.usize(..4)];
        slot(Some(key), plan(random))
    };
    (0..random.usize(..4)).map(|_| part(random)).collect()
}

fn policies(random: &mut Rng) -> Vec<BoundaryPolicy> {
    let entry = |random: &mut Rng| {
        let name = ["small", "medium", "large", "huge", "no-such-plan"][random.usize(..5)];
        match random.u8(..3) {
            0 => name.to_owned(),
            _ => format!("{}/{name}", KINDS[random.usize(..KINDS.len())].0),
        }
    };
    let one = |random: &mut Rng, index: usize| {
        let plans: std::collections::BTreeSet<_> =
            (0..random.usize(1..6)).map(|_| entry(random)).collect();
        let plans: Vec<_> = plans.iter().map(String::as_str).collect();
        policy(&format!("p{index}"), Action::Deny, &plans)
    };
    (0..random.usize(1..4)).map(|n| one(random, n)).collect()
}

fn spec(of: &str, slots: &[Slot]) -> Value {
    if of == "container-instance" {
        let part = |slot: &Slot| match &slot.plan {
            Some(plan) => json!({"name": slot.key, "plan": plan}),
            None => json!({"name": slot.key}),
        };
        return json!({"components": slots.iter().map(part).collect::<Vec<_>>()});
    }
    match &slots[0].plan {
        Some(plan) => json!({"plan": plan}),
        None => json!({}),
    }
}

fn parts(slots: &[Slot]) -> Vec<Value> {
    let part = |slot: &Slot| json!({"component": slot.key, "plan": slot.plan});
    slots.iter().map(part).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn five_thousand_cases_come_to_the_same_from_the_decision_the_api_and_the_api_server() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = Rng::with_seed(seed);
    let server = server(Version::V1_37).await;
    let (mut refused, mut allowed, mut changes) = (0, 0, 0);
    for index in 0..BOUNDARIES {
        let name = format!("parity-{index}");
        let policies = policies(&mut random);
        let cases: Vec<_> = (0..CASES)
            .map(|_| {
                let (of, resource) = KINDS[random.usize(..KINDS.len())];
                Case {
                    of,
                    resource,
                    wanted: slots(&mut random, of),
                    held: random.bool().then(|| slots(&mut random, of)),
                }
            })
            .collect();
        changes += cases.iter().filter(|case| case.held.is_some()).count();
        server.namespace(&name, Some(&name)).await;
        // Before the policies act, anything can be stored.
        let stored: Vec<_> = stream::iter(cases.iter().enumerate())
            .map(|(n, case)| store(&server, &name, n, case))
            .buffered(TOGETHER)
            .collect()
            .await;
        let named: Vec<_> = policies
            .iter()
            .cloned()
            .map(|mut policy| {
                policy.spec.boundary.clone_from(&name);
                policy
            })
            .collect();
        let objects = compiled(&named, &types());
        server.put(&objects).await;
        server.wait(&objects).await;
        let known = Known::new(&name, &policies).await;
        let answers: Vec<_> = stream::iter(cases.iter().zip(&stored).enumerate())
            .map(|(n, (case, stored))| {
                let (server, known, name) = (&server, &known, &name);
                async move {
                    let by_api = by_api(known, case).await;
                    let by_server = by_server(server, name, n, case, stored.as_ref()).await;
                    (by_api, by_server)
                }
            })
            .buffered(TOGETHER)
            .collect()
            .await;
        for (case, (by_api, by_server)) in cases.iter().zip(answers) {
            let held = case.held.as_deref().unwrap_or_default();
            let decided = said(&policies, case.of, &case.wanted, held);
            let shown = || {
                format!(
                    "seed {seed}: {} {:?} <- {:?} of {policies:?}",
                    case.of, case.wanted, case.held
                )
            };
            assert_eq!(by_api, decided, "API: {}", shown());
            assert_eq!(by_server, decided, "API server: {}", shown());
            *(if decided.is_some() {
                &mut refused
            } else {
                &mut allowed
            }) += 1;
        }
        for object in &objects {
            server.delete(object).await;
        }
    }
    println!("{refused} refused, {allowed} allowed, {changes} of them changes");
    assert_eq!(refused + allowed, BOUNDARIES * CASES);
    assert!(refused > 500 && allowed > 500 && changes > 500);
}

async fn store(server: &Server, namespace: &str, n: usize, case: &Case) -> Option<Value> {
    let held = case.held.as_ref()?;
    let object = object(case.resource, &format!("o{n}"), &spec(case.of, held));
    let path = collection(namespace, case.resource);
    let answer = server.admin(Method::POST, &path, Some(&object)).await;
    Some(answer.accepted())
}

async fn by_api(known: &Known, case: &Case) -> Option<String> {
    let held = case.held.as_deref().unwrap_or_default();
    let body = json!({"type": case.of, "wanted": parts(&case.wanted), "held": parts(held)});
    let text = check(&known.name, &known.api.portal, &body);
    let reply = known.api.caller.send(&text).await.unwrap();
    match reply.status {
        200 => None,
        422 => Some(reply.detail().to_owned()),
        _ => panic!("{reply:?}"),
    }
}

async fn by_server(
    server: &Server,
    namespace: &str,
    n: usize,
    case: &Case,
    stored: Option<&Value>,
) -> Option<String> {
    let name = format!("o{n}");
    let mut object = object(case.resource, &name, &spec(case.of, &case.wanted));
    let path = collection(namespace, case.resource);
    let answer = match stored {
        None => {
            let path = format!("{path}?dryRun=All");
            server.admin(Method::POST, &path, Some(&object)).await
        }
        Some(stored) => {
            let version = &stored["metadata"]["resourceVersion"];
            object["metadata"]["resourceVersion"] = version.clone();
            let path = format!("{path}/{name}?dryRun=All");
            server.admin(Method::PUT, &path, Some(&object)).await
        }
    };
    refusal(&answer)
}
