//! What the charts render.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::{Value, json};

use crate::helm::{EVERYTHING, MEMBER, OPERATOR, objects, of_kind, read, template};

#[test]
fn there_are_no_hooks() {
    for objects in [template(OPERATOR, &EVERYTHING), template(MEMBER, &[])] {
        for object in objects {
            let annotations = &object["metadata"]["annotations"];
            assert!(annotations["helm.sh/hook"].is_null(), "{object}");
        }
    }
}

#[test]
fn crds_are_part_of_it_and_stay_as_asked() {
    let policy = |objects: &[Value]| -> Vec<Value> {
        let crds = of_kind(objects, "CustomResourceDefinition");
        let policy =
            |crd: &&Value| crd["metadata"]["annotations"]["helm.sh/resource-policy"].clone();
        crds.iter().map(policy).collect()
    };
    assert_eq!(policy(&template(OPERATOR, &[])), vec![json!("keep"); 3]);
    let dropped = template(OPERATOR, &["crds.keep=false"]);
    assert_eq!(policy(&dropped), vec![Value::Null; 3]);
    assert_eq!(
        policy(&template(OPERATOR, &["crds.enabled=false"])).len(),
        0
    );
}

#[test]
fn every_option_makes_its_objects() {
    let kinds = |values: &[&str]| -> BTreeSet<String> {
        let objects = template(OPERATOR, values);
        let kinds = objects
            .iter()
            .map(|o| o["kind"].as_str().unwrap().to_owned());
        kinds.collect()
    };
    let few = kinds(&[]);
    let all = kinds(&EVERYTHING);
    let options = [
        "ServiceMonitor",
        "PrometheusRule",
        "ConfigMap",
        "NetworkPolicy",
        "Certificate",
        "Issuer",
    ];
    for kind in options {
        assert!(all.contains(kind) && !few.contains(kind), "{kind}");
    }
    let alone = kinds(&[
        "replicas=1",
        "rbac.create=false",
        "serviceAccount.create=false",
        "serviceAccount.name=mine",
        "metrics.service.enabled=false",
        "crds.enabled=false",
    ]);
    assert_eq!(alone, ["Deployment".to_owned()].into());
    let rule = template(OPERATOR, &EVERYTHING);
    let rule = of_kind(&rule, "PrometheusRule")[0].clone();
    let alerts: Value =
        serde_saphyr::from_str(&read("charts/boundary-operator/files/alerts.yaml")).unwrap();
    assert_eq!(rule["spec"], alerts);
}

/// The rules and subjects of the charts are those of `config/rbac`, under other names.
#[test]
fn the_roles_grant_what_config_rbac_grants() {
    let rules = |objects: &[Value]| -> Vec<Value> {
        let mut rules: Vec<_> = objects
            .iter()
            .filter(|object| object["rules"].is_array())
            .map(|object| object["rules"].clone())
            .collect();
        rules.sort_by_key(ToString::to_string);
        rules
    };
    let hub = objects(&read("config/rbac/hub.yaml"));
    let member = objects(&read("config/rbac/member.yaml"));
    let both = [hub.clone(), member.clone()].concat();
    assert_eq!(rules(&template(OPERATOR, &[])), rules(&both));
    let without = template(OPERATOR, &["localMember.enabled=false"]);
    assert_eq!(rules(&without), rules(&hub));
    assert_eq!(rules(&template(MEMBER, &[])), rules(&member));

    for objects in [
        template(
            OPERATOR,
            &["fullnameOverride=x", "serviceAccount.name=mine"],
        ),
        template(MEMBER, &["fullnameOverride=x", "serviceAccount.name=mine"]),
    ] {
        let names: BTreeSet<_> = (objects.iter())
            .filter(|object| object["rules"].is_array())
            .map(|object| {
                (
                    &object["kind"],
                    object["metadata"]["name"].as_str(),
                    object["metadata"]["namespace"].as_str(),
                )
            })
            .map(|(kind, name, namespace)| format!("{kind} {name:?} {namespace:?}"))
            .collect();
        for object in &objects {
            let Some(reference) = object.get("roleRef") else {
                continue;
            };
            let namespace = object["metadata"]["namespace"].as_str();
            let role = format!(
                "{} {:?} {namespace:?}",
                reference["kind"],
                reference["name"].as_str()
            );
            assert!(names.contains(&role), "{role} is not among {names:?}");
            assert_eq!(
                object["subjects"],
                json!([{"kind": "ServiceAccount", "name": "mine", "namespace": "ops"}])
            );
        }
        assert_eq!(
            of_kind(&objects, "ServiceAccount")[0]["metadata"]["name"],
            "mine"
        );
    }
}

fn operator(objects: &[Value]) -> Value {
    of_kind(objects, "Deployment")[0]["spec"]["template"]["spec"]["containers"][0].clone()
}

#[test]
fn the_operator_knows_every_argument_that_it_gets() {
    let container = operator(&template(
        OPERATOR,
        &[
            "metrics.port=18080",
            "operator.otlpEndpoint=http://127.0.0.1:4318",
            "operator.labelGuard=false",
        ],
    ));
    let arguments = container["args"].as_array().unwrap();
    let arguments: Vec<_> = arguments.iter().map(|a| a.as_str().unwrap()).collect();
    let run = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_boundary-operator"))
            .args(arguments)
            .args(["--kubeconfig", "/nothing/here"])
            .output()
            .unwrap()
    };
    let known = run(&arguments);
    let errors = String::from_utf8(known.stderr).unwrap();
    // 2 is what an unknown argument ends with.
    assert_eq!(known.status.code(), Some(1), "{errors}");
    assert!(errors.contains("/nothing/here"), "{errors}");
    assert_eq!(run(&["--unknown"]).status.code(), Some(2));
}

#[test]
fn what_is_asked_of_pods_is_there() {
    let values = [
        "image.digest=sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        "priorityClassName=high",
        "nodeSelector.a=b",
        "tolerations[0].key=t",
        "imagePullSecrets[0].name=pull",
        "operator.extraEnv[0].name=HTTPS_PROXY",
        "operator.extraArgs[0]=--proof-interval=10m",
        "extraVolumes[0].name=v",
        "extraVolumeMounts[0].name=v",
        "hostAliases[0].ip=10.0.0.1",
        "podLabels.team=platform",
        "podAnnotations.note=x",
        "commonLabels.owner=platform",
        "affinity.nodeAffinity.x=1",
        "dnsConfig.ndots=1",
        "extraContainers[0].name=side",
    ];
    let objects = template(OPERATOR, &values);
    let deployment = of_kind(&objects, "Deployment")[0];
    let template = &deployment["spec"]["template"];
    let (pod, container) = (&template["spec"], &template["spec"]["containers"][0]);
    assert!(
        container["image"]
            .as_str()
            .unwrap()
            .contains("@sha256:0123")
    );
    assert_eq!(pod["priorityClassName"], "high");
    assert_eq!(pod["nodeSelector"]["a"], "b");
    assert_eq!(pod["tolerations"][0]["key"], "t");
    assert_eq!(pod["imagePullSecrets"][0]["name"], "pull");
    assert_eq!(pod["hostAliases"][0]["ip"], "10.0.0.1");
    assert_eq!(pod["volumes"][0]["name"], "v");
    assert_eq!(pod["affinity"]["nodeAffinity"]["x"], 1);
    assert_eq!(pod["dnsConfig"]["ndots"], 1);
    assert_eq!(pod["containers"][1]["name"], "side");
    assert_eq!(container["volumeMounts"][0]["name"], "v");
    let has = |list: &Value, item: &Value| list.as_array().unwrap().contains(item);
    assert!(has(&container["env"], &json!({"name": "HTTPS_PROXY"})));
    assert!(has(&container["args"], &json!("--proof-interval=10m")));
    assert_eq!(template["metadata"]["labels"]["team"], "platform");
    assert_eq!(template["metadata"]["annotations"]["note"], "x");
    for object in &objects {
        assert_eq!(
            object["metadata"]["labels"]["owner"], "platform",
            "{object}"
        );
    }
    let spread = pod["topologySpreadConstraints"].as_array().unwrap();
    assert_eq!(spread.len(), 2);
    let selector = &deployment["spec"]["selector"];
    assert!(
        spread
            .iter()
            .all(|constraint| &constraint["labelSelector"] == selector)
    );
}
