//! Which values a chart takes.

use std::fs;

use rstest::rstest;

use crate::helm::{CHARTS, EVERYTHING, OPERATOR, helm, objects, of_kind, root};

#[test]
fn helm_finds_nothing_to_say() {
    for chart in CHARTS {
        let lint = helm(&["lint", "--strict", chart]).unwrap();
        assert!(lint.contains("0 chart(s) failed"), "{lint}");
    }
    let mut arguments = vec!["lint", "--strict", OPERATOR];
    for value in EVERYTHING {
        arguments.extend(["--set", value]);
    }
    helm(&arguments).unwrap();
}

#[rstest]
#[case::unknown("replicaCount=3", "replicaCount")]
#[case::unknown_inside("operator.labelgard=false", "labelgard")]
#[case::kind("replicas=two", "replicas")]
#[case::below("replicas=-1", "replicas")]
#[case::port("metrics.port=70000", "metrics/port")]
#[case::label("operator.boundaryLabel=a b", "boundaryLabel")]
#[case::log("operator.logFormat=xml", "logFormat")]
#[case::collector("operator.otlpEndpoint=collector:4318", "otlpEndpoint")]
#[case::digest("image.digest=sha256:1", "digest")]
#[case::pull("image.pullPolicy=Sometimes", "pullPolicy")]
#[case::annotation("podAnnotations.a.b=c", "podAnnotations")]
#[case::issuer("planApi.tls.certManager.issuerRef.names=x", "issuerRef")]
#[case::audience("planApi.audiences[0]=a b", "planApi/audiences")]
#[case::stale("planApi.staleAfter=soon", "staleAfter")]
#[case::connections("planApi.maxConnections=0", "maxConnections")]
#[case::certificate("planApi.enabled=true", "planApi.tls.secretName")]
#[case::account("serviceAccount.create=false", "serviceAccount.name")]
fn a_bad_value_is_named(#[case] value: &str, #[case] named: &str) {
    let refused = helm(&["template", "x", OPERATOR, "--set", value]).unwrap_err();
    let plain = refused.replace('.', "/");
    assert!(
        refused.contains(named) || plain.contains(named),
        "{refused}"
    );
}

#[test]
fn they_can_be_parts_of_a_chart() {
    let parent = tempfile::tempdir().unwrap();
    let at = |name: &str| parent.path().join(name);
    let dependency = |name: &str| {
        format!(
            "- {{name: {name}, version: {}, condition: {name}.enabled}}\n",
            env!("CARGO_PKG_VERSION")
        )
    };
    fs::write(
        at("Chart.yaml"),
        format!(
            "apiVersion: v2\nname: platform\nversion: 1.0.0\ndependencies:\n{}{}",
            dependency("boundary-operator"),
            dependency("boundary-member")
        ),
    )
    .unwrap();
    fs::write(
        at("values.yaml"),
        "global: {registry: example.com}\nboundary-operator: {enabled: true, replicas: 1}\n\
         boundary-member: {enabled: false}\n",
    )
    .unwrap();
    for chart in CHARTS {
        copy(&root().join(chart), &at(chart));
    }
    let parent = parent.path().to_str().unwrap();
    let objects = objects(&helm(&["template", "platform", parent]).unwrap());
    assert_eq!(of_kind(&objects, "Deployment").len(), 1);
    assert_eq!(of_kind(&objects, "PodDisruptionBudget").len(), 0);
    assert_eq!(of_kind(&objects, "ClusterRole").len(), 2);
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}
