//! The examples and the table in the documents, on an API server of 1.37 and offline.

use std::fs;
use std::path::Path;

use boundary_operator::api::BoundaryPolicy;
use boundary_operator::evaluate::Kind;
use control_plane::{Version, eventually, shared_with_controller_manager};
use http::Method;
use serde_json::{Value, json};

use crate::boundary::Offline;
use crate::server::{SOON, Server, collection};
use crate::servers::acting;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn read(path: &str) -> Value {
    let text = fs::read_to_string(Path::new(ROOT).join(path)).unwrap();
    serde_saphyr::from_str(&text).unwrap()
}

fn names(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(Path::new(ROOT).join(folder)).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect()
}

/// The policies of the shared platform, for a boundary of their own.
fn policies(boundary: &str) -> Vec<BoundaryPolicy> {
    ["defaults", "isolation"]
        .map(|name| {
            let policy = read(&format!("examples/shared-platform/policies/{name}.yaml"));
            let mut policy: BoundaryPolicy = serde_json::from_value(policy).unwrap();
            boundary.clone_into(&mut policy.spec.boundary);
            policy
        })
        .into()
}

/// `found` has all that `expected` has.
#[track_caller]
fn has(expected: &Value, found: &Value) {
    match (expected, found) {
        (Value::Object(fields), Value::Object(_)) => {
            for (key, field) in fields {
                has(field, &found[key]);
            }
        }
        (Value::Array(items), Value::Array(of)) => {
            assert_eq!(items.len(), of.len(), "{found}");
            items
                .iter()
                .zip(of)
                .for_each(|(item, found)| has(item, found));
        }
        _ => assert_eq!(expected, found),
    }
}

#[tokio::test]
async fn before_and_after() {
    let server = Server::of(Version::V1_37).await;
    let name = "before-and-after";
    let policies = policies(name);
    server.enforce(name, &acting(&server, &policies)).await;
    let (mut changed, mut refused) = (0, 0);
    for file in names("examples/shared-platform/before") {
        let mut object = read(&format!("examples/shared-platform/before/{file}"));
        object["metadata"]["namespace"] = json!(name);
        let answer = server.create(name, &object).await;
        let after = format!("examples/shared-platform/after/{file}");
        if !Path::new(ROOT).join(&after).exists() {
            let offline = Offline::new(&policies, name).judge(&object);
            assert_eq!(offline, [answer.refusal().unwrap()], "{file}");
            refused += 1;
            continue;
        }
        let stored = answer.accepted();
        let after = read(&after);
        has(&after, &stored);
        let resources = |pod: &Value| pod["spec"]["containers"][0]["resources"].clone();
        assert_eq!(
            resources(&after),
            resources(&stored),
            "nothing more, and no CPU limit"
        );
        has(&after, &Offline::new(&policies, name).mutate(&object));
        changed += 1;
    }
    assert_eq!((changed, refused), (2, 1));
}

/// The rows of the table in the document: the cells of each.
fn rows() -> Vec<Vec<String>> {
    let text = fs::read_to_string(Path::new(ROOT).join("docs/workloads.md")).unwrap();
    let rows = text
        .lines()
        .filter(|line| line.starts_with("| ") && line.contains(".yaml"));
    rows.map(|line| {
        let cells = line.trim_matches('|').split('|');
        cells.map(|cell| cell.trim().to_owned()).collect()
    })
    .collect()
}

/// What stands in a cell between backticks.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// The first Pod that the controllers make of an object; of a `CronJob`, that of a Job of its.
async fn pod_of(server: &Server, namespace: &str, object: &Value) -> Value {
    let mut object = object.clone();
    if object["kind"] == "CronJob" {
        let job = object["spec"]["jobTemplate"]["spec"].clone();
        let metadata = object["metadata"].clone();
        object =
            json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": job});
    }
    let name = server.store(namespace, &object).await["metadata"]["name"].clone();
    let start = format!("{}-", name.as_str().unwrap());
    let pods = collection(namespace, Kind::Pod);
    eventually("the controllers make a Pod", SOON, async || {
        let list = server.admin(Method::GET, &pods, None).await.accepted();
        let mut pods = list["items"].as_array().unwrap().iter();
        let of_it = |pod: &&Value| {
            pod["metadata"]["name"]
                .as_str()
                .unwrap()
                .starts_with(&start)
        };
        pods.find(of_it).cloned()
    })
    .await
}

#[tokio::test]
async fn the_table_of_workloads_is_right() {
    let start = || shared_with_controller_manager(Version::V1_37);
    let server = Server::at(tokio::task::spawn_blocking(start).await.unwrap());
    let name = "workloads";
    let policies = policies(name);
    server.enforce(name, &acting(&server, &policies)).await;
    let rows = rows();
    let mut files = names("examples/typical-workloads");
    files.sort();
    let mut listed: Vec<_> = rows
        .iter()
        .map(|row| quoted(&row[0])[0].to_owned())
        .collect();
    listed.sort();
    assert_eq!(listed, files);
    assert_eq!(rows.len(), 10);
    for row in &rows {
        let file = quoted(&row[0])[0];
        let mut object = read(&format!("examples/typical-workloads/{file}"));
        object["metadata"]["namespace"] = json!(name);
        let answer = server.create(name, &object).await;
        if row[1] == "refused" {
            let refusal = answer.refusal().unwrap();
            for reason in quoted(&row[2]) {
                assert!(refusal.contains(reason), "{file}: {reason}: {refusal}");
            }
            let sentences = refusal.matches("Policy 'isolation'").count();
            assert_eq!(quoted(&row[2]).len(), sentences, "{file}: {refusal}");
            continue;
        }
        assert_eq!(row[1], "admitted", "{file}");
        answer.accepted();
        let pod = pod_of(&server, name, &object).await;
        let typed = serde_json::from_value(pod.clone()).unwrap();
        for rule in policies[0].spec.rules.names() {
            assert_eq!(
                policies[0].spec.rules.is_kept_by(rule, &typed),
                Some(true),
                "{file} {rule}"
            );
        }
        for memory in quoted(&row[2]) {
            let (container, amount) = memory.split_once(' ').unwrap();
            let lists = ["containers", "initContainers"].map(|list| &pod["spec"][list]);
            let mut all = lists.into_iter().filter_map(Value::as_array).flatten();
            let found = all.find(|c| c["name"] == container).unwrap();
            assert_eq!(found["resources"]["limits"]["memory"], amount, "{file}");
            assert_eq!(found["resources"]["requests"]["memory"], amount, "{file}");
        }
    }
}
