//! Runs helm.

use std::path::{Path, PathBuf};
use std::process::Command;

use control_plane::{Tool, binaries};
use serde_json::Value;

pub(crate) const OPERATOR: &str = "charts/boundary-operator";
pub(crate) const MEMBER: &str = "charts/boundary-member";
pub(crate) const CHARTS: [&str; 2] = [OPERATOR, MEMBER];

pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// What helm prints, or what it says is wrong.
pub(crate) fn helm(arguments: &[&str]) -> Result<String, String> {
    let helm = binaries::ensure_tool(Tool::Helm).unwrap();
    let output = Command::new(helm)
        .args(arguments)
        .current_dir(root())
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if output.status.success() {
        Ok(text(output.stdout))
    } else {
        Err(text(output.stdout) + &text(output.stderr))
    }
}

/// The objects of a chart with these values, in the namespace `ops`.
pub(crate) fn template(chart: &str, values: &[&str]) -> Vec<Value> {
    let mut arguments = vec!["template", "boundary-operator", chart, "--namespace", "ops"];
    for value in values {
        arguments.extend(["--set", value]);
    }
    objects(&helm(&arguments).unwrap())
}

pub(crate) fn objects(manifests: &str) -> Vec<Value> {
    let documents = manifests.split("\n---\n");
    let objects = documents.map(|document| serde_saphyr::from_str::<Value>(document).unwrap());
    objects.filter(|object| !object.is_null()).collect()
}

pub(crate) fn of_kind<'o>(objects: &'o [Value], kind: &str) -> Vec<&'o Value> {
    objects.iter().filter(|o| o["kind"] == kind).collect()
}

/// Every option of the chart of the operator at once.
pub(crate) const EVERYTHING: [&str; 8] = [
    "planApi.enabled=true",
    "planApi.tls.certManager.enabled=true",
    "planApi.audiences[0]=compute-plans",
    "metrics.serviceMonitor.enabled=true",
    "metrics.prometheusRule.enabled=true",
    "metrics.dashboard.enabled=true",
    "networkPolicy.enabled=true",
    "metrics.port=18080",
];
