//! The resources that users write: [`BoundaryPolicy`], [`MemberCluster`] and
//! [`ComputeResourceType`].

mod boundary_policy;
mod compute_resource_type;
mod condition;
mod crds;
mod member_cluster;
pub(crate) mod patterns;
mod scope;
mod validate;

pub use boundary_policy::{
    Action, BoundaryPolicy, BoundaryPolicySpec, BoundaryPolicyStatus, ClusterScope, ClusterState,
    ClusterStatus, Exemption, Summary, WhenMutationUnsupported,
};
pub use compute_resource_type::{
    ComputePlan, ComputeResourceType, ComputeResourceTypeSpec, PlanField, PlanTarget,
    validate_resource_type,
};
pub use condition::{ConditionStatus, condition, set_condition};
pub use crds::crds;
pub use member_cluster::{
    ArgocdSecretRef, DeletionPolicy, LocalCluster, MemberCluster, MemberClusterSpec,
    MemberClusterStatus, ObjectRef, PolicyCounts, SecretKeyRef,
};
pub use patterns::{is_dns_label, is_image_prefix, is_label_key, is_label_value};
pub use scope::selects;
pub use validate::{FieldError, validate};

/// The API group of every resource, and the prefix of every label and annotation.
pub const GROUP: &str = "boundarypolicy.dev";

/// The label that puts a namespace into a boundary, unless another key is configured.
pub const BOUNDARY_LABEL: &str = "boundarypolicy.dev/boundary";
