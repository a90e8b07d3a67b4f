use crate::support::{Files, TRUSTED, pod};

/// The error of compiling `policy`, as the file `p.yaml`.
fn error(policy: &str) -> String {
    let run = Files::new([("p.yaml", policy)]).run("compile -f p.yaml");
    assert_eq!((run.status, run.stdout.as_str()), (2, ""), "{}", run.stderr);
    run.stderr
}

#[test]
fn file_document_line_and_field_are_named() {
    let second = TRUSTED
        .replace("trusted", "second")
        .replace("[ghcr.io/acme]", "\n      - https://x");
    let found = error(&format!(
        "{TRUSTED}---\n{}",
        second
            .replace("{registries: \n", "\n      registries:\n")
            .replace("x}", "x")
    ));
    assert!(
        found.starts_with("p.yaml: document 2, line 17: spec.rules.allowedRegistries.registries[0]: \"https://x\" is not an image prefix"),
        "{found}"
    );
}

#[rstest::rstest]
#[case::unknown(
    "boundary: web",
    "boundary: web\n  colour: red",
    "line 6: spec.colour: there is no such field"
)]
#[case::unknown_rule(
    "allowedRegistries",
    "allowedRegistry",
    "line 7: spec.rules.allowedRegistry: there is no such field"
)]
#[case::unknown_metadata(
    "{name: trusted}",
    "{name: trusted, lables: {}}",
    "line 3: metadata.lables: there is no such field"
)]
#[case::missing("  boundary: web\n", "", "line 4: spec: boundary is missing")]
#[case::kind_of_value(
    "boundary: web",
    "boundary: 7",
    "line 5: spec.boundary: must be string, is integer; quote it"
)]
#[case::action(
    "boundary: web",
    "boundary: web\n  action: Refuse",
    "line 6: spec.action: \"Refuse\" must be one of Deny, Warn, Audit"
)]
#[case::name(
    "{name: trusted}",
    "{name: A_b}",
    "line 3: metadata.name: \"A_b\" is not a name"
)]
#[case::version(
    "v1alpha1",
    "v1",
    "line 1: apiVersion: a BoundaryPolicy is of boundarypolicy.dev/v1alpha1"
)]
#[case::typo(
    "kind: BoundaryPolicy",
    "kind: BoundryPolicy",
    "line 2: kind: BoundryPolicy of"
)]
#[case::time_of_another_shape(
    "boundary: web",
    "boundary: web\n  exemptions: [{reason: r, rules: [AllowedRegistries], users: [u], expires: 20270131T000000Z}]",
    "line 6: spec.exemptions[0].expires: is not a time like 2027-01-31T00:00:00Z"
)]
#[case::null_in_place_of_a_required_field(
    "boundary: web",
    "boundary:",
    "line 4: spec: boundary is missing"
)]
#[case::null_in_place_of_the_only_rule(
    "{registries: [ghcr.io/acme]}",
    "",
    "spec.rules: must have at least one rule"
)]
#[case::syntax("boundary: web", "boundary: [web", "document 1, line ")]
#[case::twice(
    "boundary: web",
    "boundary: web\n  boundary: api",
    "document 1, line 6: "
)]
#[case::no_kind("kind: BoundaryPolicy\n", "", "line 1: has no kind")]
fn one_field_is_wrong(#[case] from: &str, #[case] to: &str, #[case] expected: &str) {
    assert!(TRUSTED.contains(from));
    let found = error(&TRUSTED.replace(from, to));
    assert!(found.starts_with("p.yaml: document 1, line "), "{found}");
    assert!(found.contains(expected), "{found}");
}

#[test]
fn a_bad_time_is_named() {
    let policy = format!(
        "{TRUSTED}  exemptions:\n  - reason: r\n    rules: [AllowedRegistries]\n    users: [a]\n    expires: soon\n"
    );
    let found = error(&policy);
    assert!(
        found.contains("line 12: spec.exemptions[0].expires: is not a time like"),
        "{found}"
    );
}

#[test]
fn every_problem_of_every_document_is_listed() {
    let broken = TRUSTED
        .replace("boundary: web", "boundary: '-'")
        .replace("ghcr.io/acme", "'*', ''");
    let found = error(&format!(
        "{broken}---\na: [\n---\n{}",
        TRUSTED.replace("web", "web\n  x: 1")
    ));
    assert!(
        found.contains("document 1, line 7: spec.rules.allowedRegistries.registries[0]"),
        "{found}"
    );
    assert!(
        found.contains("document 1, line 7: spec.rules.allowedRegistries.registries[1]"),
        "{found}"
    );
    assert!(found.contains("document 2, line "), "{found}");
    assert!(found.contains("document 3, line 16: spec.x"), "{found}");
}

#[test]
fn a_name_can_be_given_once() {
    let files = Files::new([("p/a.yaml", TRUSTED), ("p/b/c.yml", TRUSTED)]);
    let run = files.run("compile -f p");
    assert_eq!(run.status, 2);
    let expected = "p/b/c.yml: document 1, line 3: metadata.name: \"trusted\" is the name of another policy: p/a.yaml, document 1\n";
    assert_eq!(run.stderr, expected);
}

#[rstest::rstest]
#[case::missing("compile -f nowhere.yaml", "nowhere.yaml: can't be read: ")]
#[case::empty("compile -f empty.yaml", "no BoundaryPolicy was found")]
#[case::empty_folder(
    "compile -f folder",
    "folder: the folder holds no *.yaml, *.yml or *.json file"
)]
#[case::binary("compile -f binary.yaml", "binary.yaml: line 2: is not UTF-8 text")]
#[case::zeros("compile -f zeros.yaml", "zeros.yaml: document 1, line 1: ")]
#[case::huge("compile -f huge.yaml", "huge.yaml: is larger than 16 MiB")]
#[case::bomb("compile -f bomb.yaml", "bomb.yaml: document 1, line ")]
#[case::deep("compile -f deep.yaml", "deep.yaml: document 1, line ")]
#[case::scalar(
    "compile -f scalar.yaml",
    "scalar.yaml: document 1, line 1: is not an object"
)]
#[case::stdin_twice(
    "test --policies - --resources -",
    "standard input: can be read only once"
)]
#[case::no_resource(
    "test --policies p.yaml --resources empty.yaml",
    "no resource was found"
)]
#[case::boundary(
    "test --policies p.yaml --resources p.yaml --boundary a/b",
    "must be a label value"
)]
#[case::no_resources("test --policies p.yaml", "--resources")]
#[case::nothing("test", "--policies")]
fn bad_input(#[case] arguments: &str, #[case] expected: &str) {
    let bomb = (1..12).fold(
        "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned(),
        |text, n| {
            let alias = vec![format!("*a{}", n - 1); 9].join(", ");
            format!("{text}a{n}: &a{n} [{alias}]\n")
        },
    );
    let deep = format!("a: {}{}", "[".repeat(50_000), "]".repeat(50_000));
    let files = Files::new([
        ("p.yaml", TRUSTED),
        ("empty.yaml", "# nothing\n---\n"),
        ("folder/readme.md", ""),
        ("bomb.yaml", &bomb),
        ("deep.yaml", &deep),
        ("scalar.yaml", "text\n"),
        ("huge.yaml", &"a".repeat((16 << 20) + 1)),
    ]);
    files.write("binary.yaml", b"a: b\n\xff\xfe\x00");
    files.write("zeros.yaml", &[0; 64]);
    let run = files.run_with(arguments, TRUSTED);
    assert_eq!((run.status, run.stdout.as_str()), (2, ""), "{}", run.stderr);
    assert!(run.stderr.contains(expected), "{}", run.stderr);
}

#[test]
fn resources_and_old_states_are_named_too() {
    let twice = format!("{}---\n{}", pod("a", "x"), pod("a", "y"));
    let files = Files::new([
        ("p.yaml", TRUSTED),
        ("r.yaml", "kind: Pod\n"),
        ("old.yaml", &twice),
    ]);
    let run = files.run("test --policies p.yaml --resources r.yaml --old old.yaml");
    assert_eq!(run.status, 2);
    let expected = "r.yaml: document 1, line 1: has no apiVersion\nold.yaml: document 2, line 9: the same object is in old.yaml, document 1\n";
    assert_eq!(run.stderr, expected);
}

#[test]
fn an_optional_field_that_is_null_is_not_there() {
    let policy = TRUSTED.replace(
        "boundary: web",
        "boundary: web\n  action:\n  clusters: null",
    );
    let run = Files::new([("p.yaml", &*policy)]).run("compile -f p.yaml");
    assert_eq!((run.status, run.stderr.as_str()), (0, ""));
}

#[rstest::rstest]
#[case::twice("a: 1\na: 2\n", "line 2: duplicate mapping key: a\n")]
#[case::deep(&format!("a: {}1{}\n", "{a: ".repeat(100), "}".repeat(100)), "line 1: is nested too deep\n")]
fn the_parser_speaks_to_users(#[case] text: &str, #[case] expected: &str) {
    let found = error(text);
    assert!(found.ends_with(expected), "{found}");
}
