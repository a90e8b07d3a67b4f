//! The `CustomResourceDefinition`s, made from the Rust types.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray,
};
use kube::CustomResourceExt as _;

use super::{BoundaryPolicy, ComputeResourceType, MemberCluster};

/// Every `CustomResourceDefinition`, as it is written to `crds/`.
#[must_use]
pub fn crds() -> Vec<CustomResourceDefinition> {
    let mut crds = vec![
        BoundaryPolicy::crd(),
        MemberCluster::crd(),
        ComputeResourceType::crd(),
    ];
    for version in crds.iter_mut().flat_map(|crd| &mut crd.spec.versions) {
        if let Some(schema) = version
            .schema
            .as_mut()
            .and_then(|schema| schema.open_api_v3_schema.as_mut())
        {
            tidy(schema);
        }
    }
    crds
}

/// Makes optional fields not nullable, so that `has()` and `minProperties` see what is set, and
/// joins the lines of descriptions, since those who show them break lines themselves.
fn tidy(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    // The API server knows no unsigned formats and warns of them; `minimum: 0` stays.
    schema.format = schema
        .format
        .take()
        .filter(|format| !format.starts_with("uint"));
    if let Some(description) = &mut schema.description {
        let paragraphs: Vec<_> = description
            .split("\n\n")
            .map(|paragraph| paragraph.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        *description = paragraphs.join("\n\n");
    }
    for property in schema
        .properties
        .iter_mut()
        .flat_map(|all| all.values_mut())
    {
        tidy(property);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        tidy(items);
    }
}
