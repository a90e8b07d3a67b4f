//! The alert rules and the dashboard of the chart use metrics, and values of labels, that exist.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by a panic"
)]

use std::collections::BTreeSet;

use boundary_operator::telemetry::Metrics;
use jiff::Timestamp;
use prometheus_client::encoding::prometheus_text;
use serde_json::Value;

const ALERTS: &str = include_str!("../charts/boundary-operator/files/alerts.yaml");
const DASHBOARD: &str = include_str!("../charts/boundary-operator/files/dashboard.json");

/// Every series, as it is scraped.
fn scraped() -> String {
    let metrics = Metrics::default();
    metrics.clusters([]);
    metrics.policies([]);
    metrics.policy_clusters([]);
    metrics.contacts(&[("eu-1".to_owned(), Timestamp::UNIX_EPOCH)].into());
    let mut text = String::new();
    prometheus_text::encode(&mut text, metrics.registry()).unwrap();
    text
}

/// What `expression` uses that is not among the series: names, and names with a value of a label.
fn unknown(expression: &str, scraped: &str) -> Vec<String> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let series: BTreeSet<_> = scraped
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.rsplit_once(' ').unwrap().0)
        .collect();
    let mut unknown = Vec::new();
    for (start, _) in expression.match_indices("boundary_operator_") {
        let rest = &expression[start..];
        let end = rest.find(|c| !word(c)).unwrap_or(rest.len());
        let (name, rest) = rest.split_at(end);
        let of: Vec<_> = series
            .iter()
            .filter(|series| series.split('{').next() == Some(name))
            .collect();
        if of.is_empty() {
            unknown.push(name.to_owned());
        }
        let Some(selector) = rest.strip_prefix('{').and_then(|r| r.split('}').next()) else {
            continue;
        };
        let (label, values) = selector.split_once('=').unwrap();
        for value in values.trim_matches(|c| c == '~' || c == '"').split('|') {
            let wanted = format!("{label}=\"{value}\"");
            if !of.iter().any(|series| series.contains(&wanted)) {
                unknown.push(format!("{name} {wanted}"));
            }
        }
    }
    unknown
}

fn texts<'v>(value: &'v Value, key: &str, found: &mut Vec<&'v str>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get(key).and_then(Value::as_str));
            fields.values().for_each(|value| texts(value, key, found));
        }
        Value::Array(items) => items.iter().for_each(|item| texts(item, key, found)),
        _ => {}
    }
}

#[rstest::rstest]
#[case::alerts(serde_saphyr::from_str(ALERTS).unwrap(), 12)]
#[case::dashboard(serde_json::from_str(DASHBOARD).unwrap(), 15)]
fn every_metric_exists(#[case] file: Value, #[case] least: usize) {
    let scraped = scraped();
    let mut expressions = Vec::new();
    texts(&file, "expr", &mut expressions);
    assert!(expressions.len() >= least, "{}", expressions.len());
    for expression in expressions {
        assert!(expression.contains("boundary_operator_"), "{expression}");
        assert_eq!(unknown(expression, &scraped), Vec::<String>::new());
    }
}

#[test]
fn what_does_not_exist_is_found() {
    let unknown = |expression: &str| unknown(expression, &scraped());
    assert_eq!(unknown("sum(boundary_operator_leaders)").len(), 1);
    let state = "boundary_operator_clusters{state=~\"Ready|Gone\"}";
    assert_eq!(
        unknown(state),
        ["boundary_operator_clusters state=\"Gone\""]
    );
}

#[test]
fn every_alert_says_what_to_do() {
    let alerts: Value = serde_saphyr::from_str(ALERTS).unwrap();
    let groups = alerts["groups"].as_array().unwrap();
    let rules = groups.iter().flat_map(|g| g["rules"].as_array().unwrap());
    let mut names = BTreeSet::new();
    for rule in rules {
        let name = rule["alert"].as_str().unwrap();
        assert!(names.insert(name), "{name} twice");
        for text in ["summary", "description"] {
            let text = rule["annotations"][text].as_str().unwrap();
            assert!(text.ends_with('.'), "{name}: {text}");
        }
        assert!(rule["labels"]["severity"].is_string(), "{name}");
    }
}
