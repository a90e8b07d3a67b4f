//! What a Pod may not have of its node.

use super::{CONTAINER, Place, Standard, Terms};

pub(super) fn namespaces(_: &Standard) -> Terms {
    let line = |field: &str| {
        format!(
            "(variables.podSpec.?{field}.orValue(false) ? '{field}: true is not allowed\\n' : '')"
        )
    };
    Terms {
        pod: ["hostNetwork", "hostPID", "hostIPC"].map(line).into(),
        container: Vec::new(),
    }
}

/// On the network of the node, the API server itself sets the host port of every port.
pub(super) fn ports(_: &Standard) -> Terms {
    let taken = "c[1].ports.filter(p, p.?hostPort.orValue(0) != 0).map(p, string(p.hostPort))";
    let line = CONTAINER.line("t != ''", "ports.hostPort", "SHORT(t) + ' may not be used'");
    Terms::container(format!(
        "(has(c[1].ports) && !variables.podSpec.?hostNetwork.orValue(false) ? \
         [{taken}.join(', ')].map(t, {line})[0] : '')"
    ))
}

pub(super) fn probes(standard: &Standard) -> Terms {
    if !standard.since(34) {
        return Terms::default();
    }
    let host = |handler: &str, kind: &str| {
        let host = format!("{handler}.?{kind}.?host.orValue('')");
        let field = format!("{handler}.{kind}.host");
        CONTAINER.line(
            &format!("c[1].{host} != ''"),
            &field,
            &format!("SHORT(c[1].{field}) + ' may not be set'"),
        )
    };
    let hosts = |handler: &str| format!("{} + {}", host(handler, "httpGet"), host(handler, "tcpSocket"));
    let mut terms: Vec<_> = ["livenessProbe", "readinessProbe", "startupProbe"]
        .map(|probe| format!("(has(c[1].{probe}) ? {} : '')", hosts(probe)))
        .into();
    let handlers = ["lifecycle.postStart", "lifecycle.preStop"]
        .map(|handler| format!("(has(c[1].{handler}) ? {} : '')", hosts(handler)));
    terms.push(format!(
        "(has(c[1].lifecycle) ? {} : '')",
        handlers.join(" + ")
    ));
    Terms {
        pod: Vec::new(),
        container: terms,
    }
}

pub(super) fn windows_process(_: &Standard) -> Terms {
    Terms::both(|place: &Place| {
        place.line(
            &format!("{}.?windowsOptions.?hostProcess.orValue(false)", place.context),
            "securityContext.windowsOptions.hostProcess",
            "'true is not allowed'",
        )
    })
}
