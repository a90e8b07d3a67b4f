//! `crds/` holds what the Rust types say. `UPDATE_CRDS=1 cargo test --test crds` writes it anew.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by a panic"
)]

use std::path::Path;

use kube::ResourceExt as _;

#[test]
fn are_up_to_date() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crds");
    for crd in boundary_operator::api::crds() {
        let path = folder.join(format!("{}.yaml", crd.name_any()));
        let generated = serde_saphyr::to_string(&crd).unwrap();
        if std::env::var_os("UPDATE_CRDS").is_some() {
            std::fs::write(&path, &generated).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == generated,
            "{} is stale: run `UPDATE_CRDS=1 cargo test --test crds` and commit it",
            path.display()
        );
    }
}
