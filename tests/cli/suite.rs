use std::path::Path;

use crate::support::{Files, TRUSTED, pod, refusal, run_in};

const HEAD: &str = "apiVersion: boundarypolicy.dev/v1alpha1\nkind: BoundaryTestSuite\npolicies: [p.yaml]\ncases:\n";

#[test]
fn the_example_is_as_expected() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let run = run_in(root, "test --suite examples/suite.yaml", "");
    assert_eq!((run.status, run.stderr.as_str()), (0, ""));
    assert_eq!(run.stdout, "9 cases: 9 as expected, 0 different\n");
}

/// The paths in a suite are relative to it.
fn run(cases: &str) -> crate::support::Run {
    let resources = format!("{}---\n{}", pod("a", "nginx"), pod("b", "ghcr.io/acme/b:1"));
    let suite = format!("{HEAD}{cases}");
    let files = [
        ("s/p.yaml", TRUSTED),
        ("s/r.yaml", &resources),
        ("s/suite.yaml", &suite),
    ];
    Files::new(files).run("test --suite s/suite.yaml")
}

#[test]
fn differences_are_shown() {
    let found = run("\
- {name: one, boundary: web, resource: r.yaml#1, expect: {verdict: allowed, messages: []}}
- {name: two, boundary: web, resource: r.yaml#2, expect: {verdict: allowed, messages: []}}
- {name: three, boundary: web, resource: r.yaml#1, expect: {verdict: denied, messages: [other]}}
");
    assert_eq!((found.status, found.stderr.as_str()), (1, ""));
    let refusal = refusal("nginx");
    let expected = format!(
        "\
s/suite.yaml:5: one
  expected verdict: allowed
     found verdict: denied
  expected message: (none)
     found message: {refusal}
s/suite.yaml:7: three
  expected message: other
     found message: {refusal}
3 cases: 1 as expected, 2 different
"
    );
    assert_eq!(found.stdout, expected);
}

#[rstest::rstest]
#[case::unknown_field(
    "- {name: a, resource: r.yaml#1, expects: {}, expect: {verdict: denied}}",
    "line 5: cases[0].expects: there is no such field"
)]
#[case::verdict(
    "- {name: a, resource: r.yaml#1, expect: {verdict: refused}}",
    "line 5: cases[0].expect.verdict: \"refused\" must be one of allowed"
)]
#[case::two_objects(
    "- {name: a, resource: r.yaml, expect: {verdict: denied}}",
    "line 5: cases[0].resource: must be one object, is 2"
)]
#[case::no_such_document(
    "- {name: a, resource: r.yaml#3, expect: {verdict: denied}}",
    "line 5: cases[0].resource: must be one object, is 0"
)]
#[case::no_such_file(
    "- {name: a, resource: x.yaml, expect: {verdict: denied}}",
    "s/x.yaml: can't be read"
)]
#[case::inline(
    "- {name: a, resource: {kind: Pod}, expect: {verdict: denied}}",
    "line 5: has no apiVersion"
)]
#[case::no_cases("  []", "line 4: cases: must have at least one item")]
fn bad_suites(#[case] cases: &str, #[case] expected: &str) {
    let found = run(cases);
    assert_eq!(
        (found.status, found.stdout.as_str()),
        (2, ""),
        "{}",
        found.stderr
    );
    assert!(found.stderr.contains(expected), "{}", found.stderr);
}

#[test]
fn what_is_no_suite_is_refused() {
    let files = Files::new([("p.yaml", TRUSTED)]);
    let found = files.run("test --suite p.yaml");
    assert_eq!(found.status, 2);
    assert!(
        found
            .stderr
            .contains("document 1, line 2: kind: is not a BoundaryTestSuite"),
        "{}",
        found.stderr
    );
}

#[test]
fn the_shared_platform_is_as_expected() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let run = run_in(root, "test --suite examples/shared-platform/suite.yaml", "");
    let expected = "3 cases: 3 as expected, 0 different\n";
    assert_eq!((run.status, run.stdout.as_str()), (0, expected));
}

#[test]
fn what_a_pod_lacks_after_it_was_changed_is_shown() {
    let policy = TRUSTED.replace(
        "allowedRegistries: {registries: [ghcr.io/acme]}",
        "defaultResources: {requests: {cpu: 100m}}",
    );
    let suite = "\
apiVersion: boundarypolicy.dev/v1alpha1
kind: BoundaryTestSuite
policies: [p.yaml]
cases:
- name: defaults
  boundary: web
  resource:
    apiVersion: v1
    kind: Pod
    metadata: {name: a}
    spec: {containers: [{name: c, image: 'nginx:1'}]}
  expect:
    verdict: allowed
    mutated: {spec: {containers: [{resources: {requests: {cpu: 200m, memory: null}, limits: null}}]}}
";
    let files = Files::new([("p.yaml", &policy), ("s.yaml", suite)]);
    let run = files.run("test --suite s.yaml");
    assert_eq!(run.status, 1);
    assert_eq!(
        run.stdout,
        "s.yaml:5: defaults\n  mutated spec.containers[0].resources.requests.cpu: expected 200m, found 100m\n\
         1 case: 0 as expected, 1 different\n"
    );
    let right = suite.replace("200m", "100m");
    files.write("s.yaml", right.as_bytes());
    assert_eq!(files.run("test --suite s.yaml").status, 0);
}
