//! Which member clusters a policy is for.

use std::collections::BTreeMap;

use kube::core::{Selector, SelectorExt as _};
use schemars::Schema;
use serde_json::json;

use super::{ClusterScope, FieldError};

/// The most names that a scope lists.
pub(crate) const MAX_NAMES: usize = 500;

/// The most expressions that a selector has.
pub(crate) const MAX_EXPRESSIONS: usize = 32;

/// Puts into the schema of a selector what Kubernetes only says in words.
pub(crate) fn bound_selector(schema: &mut Schema) {
    let Some(expressions) = schema.pointer_mut("/properties/matchExpressions") else {
        return;
    };
    expressions["maxItems"] = json!(MAX_EXPRESSIONS);
    let item = &mut expressions["items"];
    item["properties"]["operator"]["enum"] = json!(["In", "NotIn", "Exists", "DoesNotExist"]);
    item["x-kubernetes-validations"] = json!([{
        "rule": "self.operator in ['In', 'NotIn'] ? has(self.values) && self.values.size() > 0 : !has(self.values) || self.values.size() == 0",
        "message": "In and NotIn need values, Exists and DoesNotExist take none"
    }]);
}

/// Whether the member cluster `name` with `labels` is in `scope`; no scope is every cluster.
///
/// # Errors
/// The selector has an operator that does not exist, or values that don't go with it.
pub fn selects(
    scope: Option<&ClusterScope>,
    name: &str,
    labels: &BTreeMap<String, String>,
) -> Result<bool, FieldError> {
    let Some(ClusterScope { names, selector }) = scope else {
        return Ok(true);
    };
    let named = names.iter().flatten().any(|listed| listed == name);
    let selected = match selector {
        None => false,
        Some(selector) => Selector::try_from(selector.clone())
            .map_err(|error| FieldError::new("spec.clusters.selector", error.to_string()))?
            .matches(labels),
    };
    Ok(named || selected)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(yaml: &str) -> ClusterScope {
        serde_saphyr::from_str(yaml).unwrap()
    }

    #[rstest::rstest]
    #[case::named("names: [eu-1]", true)]
    #[case::not_named("names: [eu-2]", false)]
    #[case::selected("selector: {matchLabels: {region: eu}}", true)]
    #[case::not_selected("selector: {matchLabels: {region: us}}", false)]
    #[case::named_or_selected("{names: [eu-1], selector: {matchLabels: {region: us}}}", true)]
    #[case::expression(
        "selector: {matchExpressions: [{key: region, operator: NotIn, values: [us]}]}",
        true
    )]
    #[case::empty_selector("selector: {}", true)]
    fn scopes(#[case] yaml: &str, #[case] expected: bool) {
        let labels = [("region".to_owned(), "eu".to_owned())].into();
        assert_eq!(selects(Some(&scope(yaml)), "eu-1", &labels), Ok(expected));
    }

    #[test]
    fn no_scope_is_every_cluster() {
        assert_eq!(selects(None, "eu-1", &BTreeMap::new()), Ok(true));
    }

    #[test]
    fn an_operator_that_does_not_exist_is_an_error() {
        let scope =
            scope("selector: {matchExpressions: [{key: region, operator: Like, values: [eu]}]}");
        let error = selects(Some(&scope), "eu-1", &BTreeMap::new()).unwrap_err();
        assert_eq!(error.path, "spec.clusters.selector");
    }
}
