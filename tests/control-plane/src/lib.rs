//! Real control planes for tests and for trying out.
//!
//! A [`ControlPlane`] is an etcd, a kube-apiserver and, when asked for, a
//! kube-controller-manager of one [`Version`], on 127.0.0.1, with TLS, RBAC and tokens. The
//! binaries are built once from the Go modules beside this crate and kept in a cache; see
//! [`binaries`].
//!
//! ```no_run
//! # fn main() -> Result<(), control_plane::Error> {
//! use control_plane::{ControlPlane, Version};
//!
//! let plane = ControlPlane::builder(Version::V1_34)
//!     .user("carol", &["developers"])
//!     .start()?;
//! println!("{}", plane.kubeconfig());
//! # Ok(())
//! # }
//! ```
//!
//! Starting and stopping block, and need no async runtime. A control plane never outlives the
//! process that started it, not even when that process is killed, unless
//! [`ControlPlane::keep`] is called.

pub mod binaries;
mod control_plane;
mod credentials;
mod error;
mod eventually;
mod http;
mod process;
mod shared;
mod version;

pub use binaries::{Binary, Tool};
pub use control_plane::{Builder, ControlPlane};
pub use error::Error;
pub use eventually::eventually;
pub use shared::{shared, shared_with_controller_manager};
pub use version::Version;
