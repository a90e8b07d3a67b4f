//! What a Pod may not have of its node.

use super::{Line, Standard, Terms};

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
    let taken = "p.?hostPort.orValue(0) != 0";
    Terms::containers([Line::new(
        format!(
            "has(c[1].ports) && !variables.podSpec.?hostNetwork.orValue(false) && \
             c[1].ports.exists(p, {taken})"
        ),
        "ports.hostPort",
        format!(
            "[c[1].ports.filter(p, {taken}).map(p, string(p.hostPort)).join(', ')]\
             .map(t, SHORT(t))[0] + ' may not be used'"
        ),
    )])
}

pub(super) fn probes(standard: &Standard) -> Terms {
    if !standard.since(34) {
        return Terms::default();
    }
    let handlers = [
        ("livenessProbe", "has(c[1].livenessProbe)"),
        ("readinessProbe", "has(c[1].readinessProbe)"),
        ("startupProbe", "has(c[1].startupProbe)"),
        (
            "lifecycle.postStart",
            "has(c[1].lifecycle) && has(c[1].lifecycle.postStart)",
        ),
        (
            "lifecycle.preStop",
            "has(c[1].lifecycle) && has(c[1].lifecycle.preStop)",
        ),
    ];
    let lines = handlers.into_iter().flat_map(|(handler, is_there)| {
        ["httpGet", "tcpSocket"].map(|kind| {
            let field = format!("{handler}.{kind}.host");
            Line::new(
                format!("{is_there} && c[1].{handler}.?{kind}.?host.orValue('') != ''"),
                &field,
                format!("SHORT(c[1].{field}) + ' may not be set'"),
            )
        })
    });
    Terms::containers(lines)
}

pub(super) fn windows_process(_: &Standard) -> Terms {
    Terms::contexts(|context| {
        vec![Line::new(
            format!("{context}.?windowsOptions.?hostProcess.orValue(false)"),
            "securityContext.windowsOptions.hostProcess",
            "'true is not allowed'",
        )]
    })
}
