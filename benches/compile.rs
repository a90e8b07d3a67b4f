//! How long it takes to compile policies: `cargo bench --bench compile`.
//!
//! Every boundary has four policies, with every rule, two of them with exemptions, one a warning;
//! so there are two objects a boundary.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a benchmark fails by a panic, and criterion's macros document nothing"
)]

use std::hint::black_box;
use std::time::Duration;

use boundary_operator::api::{
    Action, BoundaryPolicy, BoundaryPolicySpec, Exemption, WhenMutationUnsupported,
};
use boundary_operator::compile::{Capabilities, Options, compile};
use boundary_operator::rules::{RuleName, Rules};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const PER_BOUNDARY: usize = 4;

fn policy(number: usize) -> BoundaryPolicy {
    let mut rules = serde_json::Map::new();
    for rule in RuleName::ALL {
        let sample = serde_json::to_value(rule.sample()).unwrap();
        rules.extend(sample.as_object().unwrap().clone());
    }
    let rules: Rules = serde_json::from_value(rules.into()).unwrap();
    let exemption = Exemption {
        reason: "function builds use a latest image".to_owned(),
        rules: RuleName::ALL.to_vec(),
        namespaces: Some(vec!["builds".to_owned()]),
        ..Exemption::default()
    };
    let spec = BoundaryPolicySpec {
        boundary: format!("boundary-{}", number / PER_BOUNDARY),
        action: match number % PER_BOUNDARY {
            0 => Action::Warn,
            _ => Action::Deny,
        },
        clusters: None,
        rules,
        exemptions: (number % 2 == 1).then_some(exemption).into_iter().collect(),
        when_mutation_unsupported: WhenMutationUnsupported::Report,
    };
    BoundaryPolicy::new(&format!("policy-{number}"), spec)
}

fn compiling(criterion: &mut Criterion) {
    let capabilities = Capabilities::of("1.37".parse().unwrap());
    let options = Options::new(capabilities, "2027-01-01T00:00:00Z".parse().unwrap());
    let mut group = criterion.benchmark_group("compile");
    group
        .sample_size(10)
        .measurement_time(Duration::from_secs(10));
    for count in [1, 100, 10_000] {
        let policies: Vec<_> = (0..count).map(policy).collect();
        assert_eq!(compile(&policies, &options).problems, []);
        group.throughput(Throughput::Elements(count as u64));
        group.bench_with_input(BenchmarkId::from_parameter(count), &policies, |bench, p| {
            bench.iter(|| compile(black_box(p), black_box(&options)));
        });
    }
    group.finish();
}

criterion_group!(benches, compiling);
criterion_main!(benches);
