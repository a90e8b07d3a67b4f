use crate::support::{Files, TRUSTED};
use boundary_operator::api::BoundaryPolicy;
use boundary_operator::compile::{Capabilities, Options, Version, compile};
use serde_json::Value;

#[test]
fn prints_exactly_the_objects_of_the_compiler() {
    let files = Files::new([("p.yaml", TRUSTED)]);
    let run = files.run("compile -f p.yaml --kubernetes 1.30");
    assert_eq!((run.status, run.stderr.as_str()), (0, ""));
    let printed: Vec<Value> = serde_saphyr::from_multiple(&run.stdout).unwrap();

    let policy: BoundaryPolicy = serde_saphyr::from_str(TRUSTED).unwrap();
    let version = Version {
        major: 1,
        minor: 30,
    };
    let options = Options::new(Capabilities::of(version), jiff::Timestamp::now());
    let mut expected = Vec::new();
    for object in compile([&policy], &options).objects {
        expected.push(serde_json::to_value(&object.policy).unwrap());
        expected.push(serde_json::to_value(&object.binding).unwrap());
    }
    assert_eq!(printed, expected);
    assert_eq!(printed[0]["kind"], "ValidatingAdmissionPolicy");
    assert_eq!(printed[1]["kind"], "ValidatingAdmissionPolicyBinding");
}

#[test]
fn says_that_nothing_is_enforced_before_1_30() {
    let files = Files::new([("p.yaml", TRUSTED)]);
    let run = files.run("compile -f p.yaml --kubernetes v1.29.15");
    assert_eq!((run.status, run.stdout.as_str()), (2, ""));
    let message = "nothing is enforced in a cluster of Kubernetes 1.29: admission policies need 1.30 or later\n";
    assert_eq!(run.stderr, message);
}

#[test]
fn refuses_what_is_no_version() {
    let files = Files::new([("p.yaml", TRUSTED)]);
    let run = files.run("compile -f p.yaml --kubernetes latest");
    assert_eq!(run.status, 2);
    assert!(
        run.stderr
            .contains("\"latest\" is not a Kubernetes version"),
        "{}",
        run.stderr
    );
}

const DEFAULTS: &str = "\
apiVersion: boundarypolicy.dev/v1alpha1
kind: BoundaryPolicy
metadata: {name: pull}
spec:
  boundary: web
  rules:
    alwaysPullImages: {}
";

#[rstest::rstest]
#[case::newest("", &["ValidatingAdmissionPolicy v1", "MutatingAdmissionPolicy v1"])]
#[case::gate_off("--kubernetes 1.34", &[])]
#[case::gate_on("--kubernetes 1.34 --mutation v1beta1", &["ValidatingAdmissionPolicy v1", "MutatingAdmissionPolicy v1beta1"])]
#[case::turned_off("--mutation none", &[])]
fn shows_what_a_version_gets(#[case] arguments: &str, #[case] expected: &[&str]) {
    let files = Files::new([("p.yaml", DEFAULTS)]);
    let run = files.run(&format!("compile -f p.yaml {arguments}"));
    assert_eq!((run.status, run.stderr.as_str()), (0, ""));
    let note = "# Policy 'pull': such a cluster doesn't change Pods, so nothing enforces AlwaysPullImages.\n";
    if expected.is_empty() {
        assert_eq!(run.stdout, note);
        return;
    }
    assert!(!run.stdout.contains(note));
    let printed: Vec<Value> = serde_saphyr::from_multiple(&run.stdout).unwrap();
    let policies: Vec<_> = (printed.iter().step_by(2))
        .map(|object| {
            let version = object["apiVersion"].as_str().unwrap().rsplit('/').next();
            format!("{} {}", object["kind"].as_str().unwrap(), version.unwrap())
        })
        .collect();
    assert_eq!(policies, expected);
}

#[test]
fn refuses_an_api_that_a_version_does_not_have() {
    let files = Files::new([("p.yaml", DEFAULTS)]);
    let run = files.run("compile -f p.yaml --kubernetes 1.33 --mutation v1beta1");
    assert_eq!((run.status, run.stdout.as_str()), (2, ""));
    assert!(
        run.stderr.contains("that needs 1.34 or later"),
        "{}",
        run.stderr
    );
}
