//! The largest policies stay within what the API server allows CEL to cost.

use std::collections::{BTreeMap, BTreeSet};

use boundary_operator::api::BoundaryPolicy;
use boundary_operator::compile::AdmissionObject;
use boundary_operator::evaluate::Kind;
use boundary_operator::rules::RuleName;
use control_plane::Version;
use serde_json::{Value, json};

use crate::cases::rules;
use crate::server::{Answer, Server, User};
use crate::support::{self, largest, longest_exemptions};
use crate::workload::{containers, with_labels, with_pod_spec};

/// What the linker reckons with.
const CONTAINERS: usize = 250;

/// The groups of the user who asks.
const GROUPS: usize = 200;

/// An image of 253 characters with as many segments as a prefix can have and one more. It shares
/// its start with no prefix.
fn image(n: usize) -> String {
    let start = format!("i{n}/a/b/c/d/e/f/g/");
    let rest = "x".repeat(253 - start.len());
    start + &rest
}

fn pod_with(containers_: usize) -> Value {
    let images: Vec<_> = (0..containers_).map(image).collect();
    let pod_spec = containers(images.iter().map(String::as_str));
    with_pod_spec(Kind::Pod, "large", &pod_spec)
}

/// Applies what the policies compile to so that every object answers by itself: in a warning,
/// which the API server sends from each, errors too. The policies stay as they are emitted.
async fn install_apart(server: &Server, policies: &[BoundaryPolicy]) -> Vec<AdmissionObject> {
    let mut objects = server.compile(policies);
    for object in &mut objects {
        object.binding.spec.validation_actions = vec!["Warn".to_owned()];
    }
    server.put(&objects).await;
    server.wait(&objects).await;
    objects
}

/// Asks as a user with many groups.
async fn ask(server: &Server, namespace: &str, object: &Value) -> Answer {
    let groups: Vec<_> = (0..GROUPS).map(|n| format!("group-{n:03}")).collect();
    let groups: Vec<_> = groups.iter().map(String::as_str).collect();
    let user = User {
        name: "somebody",
        groups: &groups,
    };
    let answer = server.create_as(user, namespace, object).await;
    assert!(answer.status.is_success(), "{answer:?}");
    answer
}

/// Every object found something, and none ran out of budget.
fn all_answered(answer: &Answer, objects: &[AdmissionObject]) {
    let said = answer.said();
    for object in objects {
        let mut of_it = said.iter().filter(|said| said.object == object.name);
        let message = &of_it.next().expect(&object.name).message;
        assert!(
            message.starts_with("Policy '"),
            "{}: {message}",
            object.name
        );
    }
    assert_eq!(said.len(), objects.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_of_the_largest_policies() {
    let server = Server::of(Version::V1_30).await;
    let mut policies: Vec<_> = (0..20).map(|n| largest(&format!("p{n:02}"))).collect();
    for (n, policy) in policies.iter_mut().enumerate() {
        policy.spec.boundary = "largest".to_owned();
        // So that a request can break this one alone.
        let labels = &mut policy.spec.rules.required_labels.as_mut().unwrap().labels;
        labels.pop_last();
        labels.insert("z".to_owned(), String::new());
        labels.pop_first();
        labels.insert(format!("own-{n}"), "x".to_owned());
    }
    let objects = install_apart(&server, &policies).await;
    server.namespace("largest", Some("largest")).await;
    all_answered(
        &ask(&server, "largest", &pod_with(CONTAINERS)).await,
        &objects,
    );

    // None is lost: each is reported when it is the only one that is broken.
    let allowed = |policy: &BoundaryPolicy| {
        let rules = &policy.spec.rules;
        let prefix = &rules.allowed_registries.as_ref().unwrap().registries[7];
        (
            rules.required_labels.clone().unwrap().labels,
            format!("{prefix}:1/x:1"),
        )
    };
    let (mut labels, _) = allowed(&policies[0]);
    for policy in &policies {
        labels.extend(allowed(policy).0);
    }
    labels.insert("z".to_owned(), "any".to_owned());
    let prefix = &policies[0]
        .spec
        .rules
        .allowed_registries
        .as_ref()
        .unwrap()
        .registries[7];
    let good = with_pod_spec(
        Kind::Pod,
        "small",
        &containers([format!("{prefix}/x:1").as_str()]),
    );
    let answer = ask(&server, "largest", &with_labels(&good, json!(labels))).await;
    assert_eq!(answer.warnings, [""; 0]);
    for (n, policy) in policies.iter().enumerate() {
        let mut labels = labels.clone();
        labels.insert(format!("own-{n}"), "y".to_owned());
        let answer = ask(&server, "largest", &with_labels(&good, json!(labels))).await;
        let name = policy.metadata.name.as_ref().unwrap();
        let expected =
            format!("Policy '{name}' (RequiredLabels) requires label own-{n}=x, found y.");
        assert_eq!(answer.warning_messages(), [expected]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_worst_policies() {
    let server = Server::of(Version::V1_30).await;
    let policies: Vec<_> = (0..6)
        .map(|n| {
            let mut policy = largest(&format!("{n}{}", "w".repeat(252)));
            policy.spec.boundary = "worst".to_owned();
            policy.spec.exemptions = longest_exemptions();
            // Prefixes of every number of segments.
            let registries = &mut policy
                .spec
                .rules
                .allowed_registries
                .as_mut()
                .unwrap()
                .registries;
            for (n, registry) in registries.iter_mut().enumerate() {
                *registry = registry
                    .splitn(n % 8 + 2, '/')
                    .take(n % 8 + 1)
                    .collect::<Vec<_>>()
                    .join("/");
            }
            policy
        })
        .collect();
    let objects = install_apart(&server, &policies).await;
    server.namespace("worst", Some("worst")).await;
    all_answered(
        &ask(&server, "worst", &pod_with(CONTAINERS)).await,
        &objects,
    );
    let inside: BTreeSet<_> = objects.iter().flat_map(|o| o.policies.keys()).collect();
    assert_eq!(inside.len(), policies.len());
}

/// Policies of one shape.
fn shaped(shape: &str, boundary: &str, count: usize) -> Vec<BoundaryPolicy> {
    let labels: BTreeMap<_, _> = (0..32).map(|n| (format!("l{n}"), "v")).collect();
    let prefixes: Vec<_> = (0..100)
        .map(|n| format!("{}{n}", "p/".repeat(n % 8)))
        .collect();
    (0..count)
        .map(|n| {
            let json = match shape {
                "labels" | "exempt-labels" => json!({"requiredLabels": {"labels": labels}}),
                "tags" => json!({"disallowLatestTag": {}}),
                _ => json!({"allowedRegistries": {"registries": prefixes}}),
            };
            let mut policy = support::policy(&format!("p{n:03}"), boundary, rules(json));
            if shape.starts_with("exempt") {
                policy.spec.exemptions = longest_exemptions();
            }
            for (n, exemption) in policy.spec.exemptions.iter_mut().enumerate() {
                let short: Vec<_> = (0..16).map(|m| format!("g{n}-{m}")).collect();
                exemption.rules = vec![RuleName::AllowedRegistries];
                exemption.namespaces = None;
                exemption.users = None;
                exemption.groups = None;
                exemption.images =
                    Some((0..16).map(|m| format!("{}x{m}", "p/".repeat(7))).collect());
                if shape == "exempt-labels" {
                    exemption.rules = vec![RuleName::RequiredLabels];
                    exemption.users = Some(short.clone());
                    exemption.groups = Some(short);
                    exemption.images = None;
                }
            }
            policy
        })
        .collect()
}

/// Many policies of one shape, in as few objects as the linker thinks they fit.
#[rstest::rstest]
#[case::labels("labels", 300)]
#[case::exempt_labels("exempt-labels", 60)]
#[case::tags("tags", 300)]
#[case::registries("registries", 60)]
#[case::exempt_images("exempt-images", 12)]
#[tokio::test(flavor = "multi_thread")]
async fn full_objects(#[case] shape: &str, #[case] count: usize) {
    let server = Server::of(Version::V1_30).await;
    let boundary = format!("full-{shape}");
    let policies = shaped(shape, &boundary, count);
    let objects = install_apart(&server, &policies).await;
    server.namespace(&boundary, Some(&boundary)).await;
    all_answered(
        &ask(&server, &boundary, &pod_with(CONTAINERS)).await,
        &objects,
    );
    let most = objects.iter().map(|object| object.policies.len()).max();
    eprintln!(
        "{shape}: {count} policies in {} objects, at most {most:?}",
        objects.len()
    );
}

/// The most containers with which a Pod is still judged.
async fn most_containers(
    server: &Server,
    boundary: &str,
    policies: &[BoundaryPolicy],
) -> (usize, String) {
    let policies: Vec<_> = policies
        .iter()
        .cloned()
        .map(|mut policy| {
            boundary.clone_into(&mut policy.spec.boundary);
            policy
        })
        .collect();
    let objects = install_apart(server, &policies).await;
    assert_eq!(
        objects.len(),
        1,
        "{boundary}: raise the budget of the linker to measure"
    );
    server.namespace(boundary, Some(boundary)).await;
    let (mut low, mut high, mut why) = (0, 4_000, String::new());
    while high - low > low / 100 + 1 {
        let middle = usize::midpoint(low, high);
        let said = ask(server, boundary, &pod_with(middle)).await.said();
        if said.iter().all(|said| said.message.starts_with("Policy '")) {
            low = middle;
        } else {
            high = middle;
            why = said.into_iter().map(|said| said.message).collect();
        }
    }
    for object in objects {
        server.delete(&object).await;
    }
    (low, why)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures what the linker reckons with; needs its budget raised"]
async fn measure() {
    let server = Server::of(Version::V1_30).await;
    let registries = |name: usize, depths: usize| {
        let prefixes: Vec<_> = (0..100)
            .map(|n| format!("{}{n}", format!("p{}/", "x".repeat(20)).repeat(n % depths)))
            .collect();
        let json = json!({"allowedRegistries": {"registries": prefixes}});
        support::policy(&format!("p{name:03}"), "b", rules(json))
    };
    let latest = |name: usize| {
        support::policy(
            &format!("p{name:03}"),
            "b",
            rules(json!({"disallowLatestTag": {}})),
        )
    };
    let exempting = |mut policy: BoundaryPolicy, count: usize| {
        policy.spec.exemptions = longest_exemptions();
        policy.spec.exemptions.truncate(count);
        for exemption in &mut policy.spec.exemptions {
            exemption.namespaces = None;
            exemption.users = None;
            exemption.groups = None;
        }
        policy
    };
    let report = async |what: &str, policies: Vec<BoundaryPolicy>| {
        let boundary = what.replace([' ', ','], "-");
        let (containers, why) = most_containers(&server, &boundary, &policies).await;
        eprintln!("{what}: {containers} containers; then {why:.300}");
    };
    for depths in [1, 4, 8] {
        for count in [1, 10, 40] {
            let policies = (0..count).map(|n| registries(n, depths)).collect();
            report(&format!("{count} registries of {depths} depths"), policies).await;
        }
    }
    for count in [1, 10, 40] {
        report(&format!("{count} latest"), (0..count).map(latest).collect()).await;
    }
    for exemptions in [1, 4, 16] {
        let policies = (0..4).map(|n| exempting(registries(n, 8), exemptions));
        report(
            &format!("4 with {exemptions} exempt images"),
            policies.collect(),
        )
        .await;
    }
    // What doesn't grow with the containers grows with the policies.
    for (shape, counts) in [
        ("exempt-labels", [10, 14, 18, 22, 26, 30]),
        ("labels", [60, 120, 150, 180, 220, 260]),
    ] {
        for count in counts {
            let boundary = format!("count-{shape}-{count}");
            let policies = shaped(shape, &boundary, count);
            let objects = install_apart(&server, &policies).await;
            assert_eq!(
                objects.len(),
                1,
                "{boundary}: raise the budget of the linker to measure"
            );
            server.namespace(&boundary, Some(&boundary)).await;
            let said = ask(&server, &boundary, &pod_with(1)).await.said();
            let messages: Vec<_> = said.into_iter().map(|said| said.message).collect();
            eprintln!("{count} {shape}: {:.300}", messages.join(" "));
        }
    }
}
