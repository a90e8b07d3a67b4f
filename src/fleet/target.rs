//! How a cluster is reached.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio::sync::Semaphore;

use super::fence::Fence;

/// The manager of the fields that are written.
pub(crate) const FIELD_MANAGER: &str = "boundary-operator";

/// The API server of a cluster.
#[derive(Clone)]
pub(crate) struct Target {
    /// How to reach it.
    pub(crate) client: Client,
    /// How long a request may take.
    pub(crate) timeout: Duration,
    /// What the client is made from, for further connections.
    pub(crate) config: Option<kube::Config>,
    /// Until when the cluster may be written to.
    pub(crate) fence: Fence,
    /// A write needs one of these, so that the writes to all clusters together are bounded.
    pub(crate) permits: Arc<Semaphore>,
}
