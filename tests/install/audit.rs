//! What an API server was asked by the operator, and what it answered.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;

use control_plane::{ControlPlane, Version};
use serde::Deserialize;

use crate::world::ACCOUNT;

/// A control plane that writes down what the operator asks of it.
pub(crate) struct Audited {
    pub(crate) plane: ControlPlane,
    log: PathBuf,
    read: u64,
    _folder: tempfile::TempDir,
}

/// A request of the operator, and its answer.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Request {
    pub(crate) verb: String,
    #[serde(default)]
    pub(crate) object_ref: Reference,
    #[serde(default)]
    response_status: Answer,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Reference {
    pub(crate) api_group: String,
    pub(crate) resource: String,
    pub(crate) subresource: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Answer {
    code: u16,
    message: String,
}

impl Request {
    /// RBAC refused it. What admission refuses is 403 too.
    pub(crate) fn is_forbidden(&self) -> bool {
        self.response_status.code == 403 && self.response_status.message.contains(" cannot ")
    }

    pub(crate) fn is_allowed(&self) -> bool {
        !matches!(self.response_status.code, 0 | 401 | 403)
    }
}

impl Audited {
    pub(crate) fn start(version: Version) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (policy, log) = (folder.path().join("policy"), folder.path().join("log"));
        let rules = format!(
            "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\n\
             rules:\n- level: Metadata\n  users: [\"{ACCOUNT}\"]\n"
        );
        std::fs::write(&policy, rules).unwrap();
        let plane = ControlPlane::builder(version)
            .controller_manager()
            // Where some clusters ask for more than RBAC does.
            .api_server_arg(
                "--enable-admission-plugins=OwnerReferencesPermissionEnforcement,NodeRestriction",
            )
            .api_server_arg(format!("--audit-policy-file={}", policy.display()))
            .api_server_arg(format!("--audit-log-path={}", log.display()))
            .start()
            .unwrap();
        Self {
            plane,
            log,
            read: 0,
            _folder: folder,
        }
    }

    /// What was asked since the last call.
    pub(crate) fn requests(&mut self) -> Vec<Request> {
        let mut file = std::fs::File::open(&self.log).unwrap();
        file.seek(SeekFrom::Start(self.read)).unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        // The last line may be only half there.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        self.read += u64::try_from(whole).unwrap();
        let lines = text[..whole].lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}
