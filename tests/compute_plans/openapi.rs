//! The description of the API that is kept is the one that is served.

use boundary_operator::plans::http::document;

const PATH: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/docs/compute-plans.openapi.json"
);

#[test]
fn the_document_is_not_stale() {
    let text = serde_json::to_string_pretty(&document()).unwrap() + "\n";
    if std::env::var_os("UPDATE_OPENAPI").is_some() {
        std::fs::write(PATH, &text).unwrap();
    }
    let stored = std::fs::read_to_string(PATH).unwrap_or_default();
    assert!(
        stored == text,
        "{PATH} is stale: run `UPDATE_OPENAPI=1 cargo test --test compute_plans openapi` and commit it"
    );
}
