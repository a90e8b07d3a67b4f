use std::path::Path;

use crate::support::{Files, TRUSTED, pod, refusal, run_in};

const WEB: &str = "--policies p.yaml --boundary web --resources";

#[test]
fn the_examples_give_one_of_each() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let arguments = "test --policies examples/policies --resources examples/workloads --now 2027-01-01T00:00:00Z";
    let run = run_in(root, arguments, "");
    assert_eq!((run.status, run.stderr.as_str()), (1, ""));
    let expected = "\
VERDICT  KIND        NAMESPACE/NAME             MESSAGE
warned   CronJob     shop/cleanup               Policy 'cost-center' (RequiredLabels) requires the label cost-center.
allowed  Pod         web-builds/function-build
denied   Deployment  shop/legacy                Policy 'no-latest' (DisallowLatestTag) denied image quay.io/example/legacy: it is tagged latest or carries no tag. Policy 'owner-label' (RequiredLabels) requires the label owner. Policy 'owner-label' (RequiredLabels) requires label team=web, found api. Policy 'trusted-registries' (AllowedRegistries) denied image quay.io/example/legacy: it is not under ghcr.io/acme, docker.io/library.
allowed  Deployment  shop/shop

2 allowed, 1 denied, 1 warned
";
    assert_eq!(run.stdout, expected);
}

#[test]
fn json_has_every_field() {
    let files = Files::new([("p.yaml", TRUSTED), ("r.yaml", &pod("a", "nginx"))]);
    let run = files.run(&format!("test {WEB} r.yaml -o json"));
    assert_eq!(run.status, 1);
    let found: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    let expected = serde_json::json!([{
        "file": "r.yaml", "document": 1, "apiVersion": "v1", "kind": "Pod",
        "namespace": "default", "name": "a", "operation": "CREATE",
        "verdict": "denied", "messages": [refusal("nginx")],
    }]);
    assert_eq!(found, expected);
}

#[rstest::rstest]
#[case("Deny", "denied", 1)]
#[case("Warn", "warned", 0)]
#[case("Audit", "audited", 0)]
fn the_action_decides(#[case] action: &str, #[case] verdict: &str, #[case] status: i32) {
    let policy = TRUSTED.replace("  rules:", &format!("  action: {action}\n  rules:"));
    let files = Files::new([("p.yaml", &policy), ("r.yaml", &pod("a", "nginx"))]);
    let expected = (verdict.to_owned(), vec![refusal("nginx")]);
    assert_eq!(files.verdicts(&format!("{WEB} r.yaml")), [expected]);
    assert_eq!(files.run(&format!("test {WEB} r.yaml")).status, status);
}

#[rstest::rstest]
#[case::no_boundary(
    "",
    "No boundary is known for namespace default: give its Namespace, or --boundary."
)]
#[case::no_policy("--boundary api", "No policy given is for boundary 'api'.")]
fn not_checked_says_why(#[case] boundary: &str, #[case] why: &str) {
    let files = Files::new([("p.yaml", TRUSTED), ("r.yaml", &pod("a", "nginx"))]);
    let arguments = format!("--policies p.yaml --resources r.yaml {boundary}");
    let expected = ("not-checked".to_owned(), vec![why.to_owned()]);
    assert_eq!(files.verdicts(&arguments), [expected]);
    assert_eq!(files.run(&format!("test {arguments}")).status, 0);
}

#[test]
fn the_namespace_given_counts_more_than_the_flag() {
    let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: default}\n";
    let files = Files::new([
        ("p.yaml", TRUSTED),
        ("r.yaml", &format!("{namespace}---\n{}", pod("a", "nginx"))),
    ]);
    let found = files.verdicts(&format!("{WEB} r.yaml"));
    assert_eq!(
        found[0].1,
        ["Namespace of v1 is not a kind that is checked."]
    );
    let why = "Namespace default is in no boundary: it has no label boundarypolicy.dev/boundary.";
    assert_eq!(found[1], ("not-checked".to_owned(), vec![why.to_owned()]));
}

#[test]
fn lists_and_standard_input_and_json() {
    let files = Files::new([("p.yaml", TRUSTED)]);
    let list = r#"{"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bad"},
         "spec": {"containers": [{"name": "c", "image": "nginx"}]}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "good"},
         "spec": {"containers": [{"name": "c", "image": "ghcr.io/acme/web:1"}]}}]}"#;
    let run = files.run_with(&format!("test {WEB} -"), list);
    assert_eq!(run.status, 1, "{}", run.stderr);
    assert!(
        run.stdout.contains("denied   Pod   default/bad"),
        "{}",
        run.stdout
    );
    assert!(
        run.stdout.contains("allowed  Pod   default/good"),
        "{}",
        run.stdout
    );
}

#[test]
fn only_a_change_of_labels_or_spec_is_judged() {
    let old = pod("a", "nginx");
    let bookkeeping = old.replace("{name: a}", "{name: a, annotations: {x: y}}");
    let files = Files::new([
        ("p.yaml", TRUSTED),
        ("old.yaml", &old),
        ("same.yaml", &bookkeeping),
        ("changed.yaml", &pod("a", "busybox")),
        ("other.yaml", &pod("b", "nginx")),
    ]);
    let verdict = |file| {
        files
            .verdicts(&format!("{WEB} {file} --old old.yaml"))
            .remove(0)
    };
    assert_eq!(verdict("same.yaml"), ("allowed".to_owned(), vec![]));
    assert_eq!(
        verdict("changed.yaml"),
        ("denied".to_owned(), vec![refusal("busybox")])
    );
    assert_eq!(
        verdict("other.yaml").0,
        "denied",
        "another name is another object"
    );
    let run = files.run(&format!("test {WEB} same.yaml --old old.yaml -o json"));
    assert!(
        run.stdout.contains("\"operation\": \"UPDATE\""),
        "{}",
        run.stdout
    );
}

#[rstest::rstest]
#[case::user("--user ann", "allowed")]
#[case::other_user("--user bob", "denied")]
#[case::group("--user bob --group ops", "allowed")]
#[case::service_account("--user system:serviceaccount:ci:x", "allowed")]
#[case::expired("--user ann --now 2030-01-01T00:00:00Z", "denied")]
fn exemptions(#[case] asker: &str, #[case] verdict: &str) {
    let policy = format!(
        "{TRUSTED}  exemptions:\n  - {{reason: r, rules: [AllowedRegistries], users: [ann], groups: [ops, 'system:serviceaccounts:ci'], expires: 2029-01-01T00:00:00Z}}\n"
    );
    let files = Files::new([("p.yaml", &policy), ("r.yaml", &pod("a", "nginx"))]);
    // A later `--now` on the command line would clash, so the default is given only without one.
    let now = if asker.contains("--now") {
        ""
    } else {
        "--now 2028-01-01T00:00:00Z"
    };
    assert_eq!(
        files.verdicts(&format!("{WEB} r.yaml {asker} {now}"))[0].0,
        verdict
    );
}

#[test]
fn what_cannot_be_told_fails_the_run() {
    let broken = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: text}\n";
    let files = Files::new([("p.yaml", TRUSTED), ("r.yaml", broken)]);
    let run = files.run(&format!("test {WEB} r.yaml"));
    assert_eq!(run.status, 2, "{}", run.stdout);
    assert!(
        run.stdout.contains("unsupported  Pod   default/a"),
        "{}",
        run.stdout
    );
}

#[test]
fn a_file_cannot_command_the_terminal() {
    let files = Files::new([
        ("p.yaml", TRUSTED),
        ("r.yaml", &pod("a", "\"\\e[2Jnginx\"")),
    ]);
    let run = files.run(&format!("test {WEB} r.yaml"));
    assert_eq!(run.status, 1);
    assert!(run.stdout.contains("\\u{1b}[2Jnginx"), "{}", run.stdout);
    assert!(!run.stdout.contains('\u{1b}'));
}

#[test]
fn a_checked_kind_of_another_version_is_not_passed() {
    let of = |api_version: &str| {
        format!("apiVersion: {api_version}\nkind: Deployment\nmetadata: {{name: d}}\n")
    };
    for api_version in ["apps/v1beta1", "extensions/v1beta1", "v1"] {
        let files = Files::new([("p.yaml", TRUSTED), ("r.yaml", &of(api_version))]);
        let why =
            format!("Deployment of {api_version} can't be judged: it is of apps/v1 in Kubernetes.");
        let expected = ("unsupported".to_owned(), vec![why]);
        assert_eq!(files.verdicts(&format!("{WEB} r.yaml")), [expected]);
        assert_eq!(files.run(&format!("test {WEB} r.yaml")).status, 2);
    }
    // Someone else's kind of the same name.
    let files = Files::new([("p.yaml", TRUSTED), ("r.yaml", &of("acme.io/v1"))]);
    assert_eq!(files.run(&format!("test {WEB} r.yaml")).status, 0);
}

#[test]
fn a_table_does_not_turn_the_direction_of_text() {
    let image = "\"\\u202etsetal\\u2028\"";
    let files = Files::new([("p.yaml", TRUSTED), ("r.yaml", &pod("a", image))]);
    let run = files.run(&format!("test {WEB} r.yaml"));
    let shown = "denied image \\u{202e}tsetal\\u{2028}: it";
    assert!(run.stdout.contains(shown), "{}", run.stdout);
}

const PULL: &str = "\
apiVersion: boundarypolicy.dev/v1alpha1
kind: BoundaryPolicy
metadata: {name: pull}
spec:
  boundary: web
  rules:
    alwaysPullImages: {}
";

#[test]
fn what_is_changed_is_shown() {
    let files = Files::new([("p.yaml", PULL), ("r.yaml", &pod("a", "nginx:1"))]);
    let run = files.run(&format!("test {WEB} r.yaml"));
    let expected = "\
VERDICT  KIND  NAMESPACE/NAME  MESSAGE
allowed  Pod   default/a       ~ spec.containers[c].imagePullPolicy: IfNotPresent -> Always

1 allowed
";
    assert_eq!((run.status, run.stdout.as_str()), (0, expected));
    let run = files.run(&format!("test {WEB} r.yaml -o json"));
    let found: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    let patch = serde_json::json!([
        {"op": "replace", "path": "/spec/containers/0/imagePullPolicy", "value": "Always"},
    ]);
    assert_eq!(found[0]["patch"], patch);
}

#[test]
fn only_a_pod_that_is_created_is_changed() {
    let pod = pod("a", "nginx:1");
    let deployment = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec:\n  template:\n    spec:\n      containers: [{name: c, image: nginx:1}]\n";
    let files = Files::new([("p.yaml", PULL), ("r.yaml", &pod), ("d.yaml", deployment)]);
    for arguments in [
        format!("{WEB} d.yaml"),
        format!("{WEB} r.yaml --old r.yaml"),
    ] {
        let run = files.run(&format!("test {arguments} -o json"));
        let found: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
        assert_eq!(found[0]["verdict"], "allowed", "{arguments}");
        assert_eq!(found[0].get("patch"), None, "{arguments}");
    }
}
