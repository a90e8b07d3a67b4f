use std::sync::OnceLock;

use crate::{ControlPlane, Version};

type PerVersion = [OnceLock<ControlPlane>; Version::ALL.len()];

static PLAIN: PerVersion = [const { OnceLock::new() }; Version::ALL.len()];
static WITH_CONTROLLER_MANAGER: PerVersion = [const { OnceLock::new() }; Version::ALL.len()];

/// The control plane of this version that all tests of this process share: started by the
/// first that asks, and gone with the process.
///
/// # Panics
///
/// Panics when it cannot be started: it is meant for tests.
#[must_use]
pub fn shared(version: Version) -> &'static ControlPlane {
    get(&PLAIN, version, false)
}

/// As [`shared`], with a kube-controller-manager; another control plane than that one.
///
/// # Panics
///
/// Panics when it cannot be started: it is meant for tests.
#[must_use]
pub fn shared_with_controller_manager(version: Version) -> &'static ControlPlane {
    get(&WITH_CONTROLLER_MANAGER, version, true)
}

#[expect(clippy::panic, reason = "it is a fixture, for tests")]
fn get(planes: &'static PerVersion, version: Version, manager: bool) -> &'static ControlPlane {
    planes[version as usize].get_or_init(|| {
        let builder = ControlPlane::builder(version);
        let builder = if manager {
            builder.controller_manager()
        } else {
            builder
        };
        builder
            .start()
            .unwrap_or_else(|error| panic!("starting the shared control plane: {error}"))
    })
}
