//! Compiles once for all clusters that are asked for the same and can do the same.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use jiff::Timestamp;

use super::report::Wanted;
use crate::compile::{Capabilities, Compilation, Options, compile, next_expiry};
use crate::plans::Catalog;

/// Compilations that some cluster holds.
#[derive(Debug, Default)]
pub struct Compiler {
    held: Mutex<Vec<Held>>,
}

#[derive(Debug)]
struct Held {
    wanted: Wanted,
    catalog: Arc<Catalog>,
    capabilities: Capabilities,
    until: Option<Timestamp>,
    compilation: Weak<Compilation>,
}

impl Compiler {
    /// What the policies of `wanted` compile to.
    pub(crate) fn compile(&self, wanted: &Wanted, options: &Options) -> Arc<Compilation> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|held| {
            held.compilation.strong_count() > 0
                && held.until.is_none_or(|until| until > options.now)
        });
        let matches = |held: &&Held| {
            held.capabilities == options.capabilities
                && same(&held.catalog, &options.catalog)
                && same_policies(&held.wanted, wanted)
        };
        if let Some(known) = held.iter().find(matches)
            && let Some(compilation) = known.compilation.upgrade()
        {
            return compilation;
        }
        let policies = wanted.iter().map(AsRef::as_ref);
        let compilation = Arc::new(compile(policies.clone(), options));
        held.push(Held {
            wanted: wanted.clone(),
            catalog: options.catalog.clone(),
            capabilities: options.capabilities,
            until: next_expiry(policies, options.now),
            compilation: Arc::downgrade(&compilation),
        });
        compilation
    }
}

fn same_policies(a: &Wanted, b: &Wanted) -> bool {
    a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| same(a, b))
}

fn same<T: PartialEq>(a: &Arc<T>, b: &Arc<T>) -> bool {
    Arc::ptr_eq(a, b) || a == b
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::Version;

    fn wanted(action: &str) -> Wanted {
        let policy = format!(
            "apiVersion: boundarypolicy.dev/v1alpha1\nkind: BoundaryPolicy\n\
             metadata: {{name: a, generation: 1}}\n\
             spec: {{boundary: web, action: {action}, rules: {{disallowLatestTag: {{}}}},\
             exemptions: [{{rules: [DisallowLatestTag], reason: x, namespaces: [n],\
             expires: 2027-01-01T00:00:00Z}}]}}"
        );
        [Arc::new(serde_saphyr::from_str(&policy).unwrap())]
            .into_iter()
            .collect()
    }

    fn options(minor: u16, now: &str) -> Options {
        let capabilities = Capabilities::of(Version {
            major: 1,
            minor: minor.into(),
        });
        Options::new(capabilities, now.parse().unwrap())
    }

    #[test]
    fn the_same_is_compiled_once_until_an_exemption_ends() {
        let compiler = Compiler::default();
        let before = options(34, "2026-12-01T00:00:00Z");
        let first = compiler.compile(&wanted("Deny"), &before);
        assert!(Arc::ptr_eq(
            &first,
            &compiler.compile(&wanted("Deny"), &before)
        ));
        let warn = compiler.compile(&wanted("Warn"), &before);
        assert_ne!(first.objects, warn.objects);
        let old = compiler.compile(&wanted("Deny"), &options(29, "2026-12-01T00:00:00Z"));
        assert!(old.objects.is_empty());
        let after = compiler.compile(&wanted("Deny"), &options(34, "2027-01-02T00:00:00Z"));
        assert_ne!(first.objects, after.objects);
    }
}
