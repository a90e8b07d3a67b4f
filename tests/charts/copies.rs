//! What the charts hold copies of, and the tables of values in their READMEs.
//! `UPDATE_CHARTS=1 cargo test --test charts` writes them anew.

use std::fmt::Write as _;
use std::fs;

use serde_json::Value;

use crate::helm::{CHARTS, MEMBER, OPERATOR, read, root};

/// Compares a file with what it has to be, or writes it.
fn is(path: &str, wanted: &str) {
    let file = root().join(path);
    if std::env::var_os("UPDATE_CHARTS").is_some() {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, wanted).unwrap();
    }
    assert!(
        fs::read_to_string(&file).unwrap_or_default() == wanted,
        "{path} is stale: run `UPDATE_CHARTS=1 cargo test --test charts` and commit it"
    );
}

#[test]
fn crds_and_roles_are_those_of_the_repository() {
    let mut crds = 0;
    for entry in fs::read_dir(root().join("crds")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let copy = format!("{OPERATOR}/files/crds/{name}");
        is(&copy, &read(format!("crds/{name}")));
        crds += 1;
    }
    let copies = fs::read_dir(root().join(OPERATOR).join("files/crds")).unwrap();
    assert_eq!(copies.count(), crds, "a CRD that is no more");
    for name in ["hub.yaml", "member.yaml"] {
        let copy = format!("{OPERATOR}/files/rbac/{name}");
        is(&copy, &read(format!("config/rbac/{name}")));
    }
    is(
        &format!("{MEMBER}/files/member.yaml"),
        &read("config/rbac/member.yaml"),
    );
}

#[test]
fn the_tables_of_values_say_what_the_values_are() {
    for chart in CHARTS {
        let path = format!("{chart}/README.md");
        let text = fs::read_to_string(root().join(&path)).unwrap_or_default();
        let (before, rest) = text.split_once("<!-- values -->\n").unwrap();
        let (_, after) = rest.split_once("<!-- end of values -->").unwrap();
        let table = table(&read(format!("{chart}/values.yaml")));
        is(
            &path,
            &format!("{before}<!-- values -->\n{table}<!-- end of values -->{after}"),
        );
    }
}

/// A row for each value that a comment describes.
fn table(values: &str) -> String {
    let defaults: Value = serde_saphyr::from_str(values).unwrap();
    let mut text = "| Value | Default | |\n|---|---|---|\n".to_owned();
    let mut comment = String::new();
    let mut path: Vec<&str> = Vec::new();
    for line in values.lines() {
        let content = line.trim_start();
        let depth = (line.len() - content.len()) / 2;
        if let Some(more) = content.strip_prefix("# ") {
            if !comment.is_empty() {
                comment.push(' ');
            }
            comment += more;
            continue;
        }
        let key = content.split_once(':').map(|(key, _)| key);
        let Some(key) = key.filter(|key| key.chars().all(char::is_alphanumeric)) else {
            assert!(comment.is_empty(), "a comment on {line}");
            continue;
        };
        path.truncate(depth);
        path.push(key);
        let value = path.iter().fold(&defaults, |value, key| &value[key]);
        let is_group = value.as_object().is_some_and(|fields| !fields.is_empty());
        if comment.is_empty() {
            let described = path.len() > 1 && !content.ends_with(':');
            assert!(
                is_group || described,
                "{} has no description",
                path.join(".")
            );
            continue;
        }
        let default = serde_json::to_string(value).unwrap();
        let _ = writeln!(text, "| `{}` | `{default}` | {comment} |", path.join("."));
        comment.clear();
    }
    text
}

/// The version of the crate is that of everything that is released with it.
#[test]
fn versions_agree() {
    let version = env!("CARGO_PKG_VERSION");
    for chart in CHARTS {
        let chart: Value = serde_saphyr::from_str(&read(format!("{chart}/Chart.yaml"))).unwrap();
        assert_eq!(chart["version"], version);
        assert_eq!(chart["appVersion"], version);
    }
    let krew: Value = serde_saphyr::from_str(&read("config/krew/boundary.yaml")).unwrap();
    assert_eq!(krew["spec"]["version"], format!("v{version}"));
    let platforms = krew["spec"]["platforms"].as_array().unwrap();
    assert!(!platforms.is_empty());
    for platform in platforms {
        let uri = platform["uri"].as_str().unwrap();
        assert!(uri.contains(&format!("/v{version}/")), "{uri}");
    }
}
