//! The volumes of a Pod.

use super::{Standard, Terms};
use crate::compile::Version;

/// The first version that allows image volumes at `restricted`, whatever the version of the
/// standards is. Source: kubernetes/kubernetes#130394.
const IMAGE_VOLUMES: Version = Version {
    major: 1,
    minor: 33,
};

/// At `baseline` no path of the node, at `restricted` only the types listed. The API server refuses
/// a volume of several types.
pub(super) fn types(standard: &Standard) -> Terms {
    if !standard.is_restricted() {
        return Terms::pod(
            "variables.podSpec.?volumes.orValue([]).filter(v, has(v.hostPath)).map(v, \
             'volumes.hostPath of volume ' + v.name + ': ' + SHORT(v.hostPath.path) + ' may not be mounted\\n').join('')"
                .to_owned(),
        );
    }
    let mut allowed = vec![
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    ];
    if standard.server >= IMAGE_VOLUMES {
        allowed.push("image");
    }
    Terms::pod(format!(
        "variables.podSpec.?volumes.orValue([]).map(v, \
         v.filter(k, !(k in ['name', '{}'])).map(k, \
         'volumes.' + k + ' of volume ' + v.name + ': this type is not allowed\\n').join('')).join('')",
        allowed.join("', '")
    ))
}
