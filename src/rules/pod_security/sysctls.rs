//! The kernel parameters of a Pod.

use super::{Standard, Terms};

/// Parameters that concern the Pod alone, each with the version that allows it.
const SAFE: &[(u32, &str)] = &[
    (0, "kernel.shm_rmid_forced"),
    (0, "net.ipv4.ip_local_port_range"),
    (0, "net.ipv4.ip_unprivileged_port_start"),
    (0, "net.ipv4.ping_group_range"),
    (0, "net.ipv4.tcp_syncookies"),
    (27, "net.ipv4.ip_local_reserved_ports"),
    (29, "net.ipv4.tcp_fin_timeout"),
    (29, "net.ipv4.tcp_keepalive_intvl"),
    (29, "net.ipv4.tcp_keepalive_probes"),
    (29, "net.ipv4.tcp_keepalive_time"),
    (32, "net.ipv4.tcp_rmem"),
    (32, "net.ipv4.tcp_wmem"),
    (37, "net.ipv4.tcp_notsent_lowat"),
    (37, "net.ipv4.tcp_slow_start_after_idle"),
];

pub(super) fn names(standard: &Standard) -> Terms {
    let safe: Vec<_> = SAFE
        .iter()
        .filter(|(minor, _)| standard.since(*minor))
        .map(|(_, name)| format!("'{name}'"))
        .collect();
    Terms::pod(format!(
        "variables.podSecurityContext.?sysctls.orValue([]).filter(s, !(s.name in [{}])).map(s, \
         'securityContext.sysctls: ' + SHORT(s.name) + ' may not be set\\n').join('')",
        safe.join(", ")
    ))
}
