//! The user and the privileges of the processes of a container.

use super::{Line, Standard, Terms};

pub(super) fn privileged(_: &Standard) -> Terms {
    Terms::containers([Line::new(
        "c[2].?privileged.orValue(false)",
        "securityContext.privileged",
        "'true is not allowed'",
    )])
}

/// Since 1.35 `baseline` allows any in a user namespace, and `restricted` does not.
pub(super) fn proc_mount(standard: &Standard) -> Terms {
    let exempt = if standard.is_restricted() {
        ""
    } else {
        standard.unless_user_namespace()
    };
    Terms::containers([Line::new(
        format!("{exempt}c[2].?procMount.orValue('Default') != 'Default'"),
        "securityContext.procMount",
        "SHORT(c[2].procMount) + ' is not allowed, only Default'",
    )])
}

/// What container runtimes give anyway.
const DEFAULT_CAPABILITIES: &str = "['AUDIT_WRITE', 'CHOWN', 'DAC_OVERRIDE', 'FOWNER', 'FSETID', \
    'KILL', 'MKNOD', 'NET_BIND_SERVICE', 'SETFCAP', 'SETGID', 'SETPCAP', 'SETUID', 'SYS_CHROOT']";

pub(super) fn capabilities(standard: &Standard) -> Terms {
    let restricted = standard.is_restricted() && standard.since(22);
    let (exempt, allowed, only) = if restricted {
        let allowed = "['NET_BIND_SERVICE']";
        (
            standard.unless_windows(),
            allowed,
            ", only NET_BIND_SERVICE",
        )
    } else {
        ("", DEFAULT_CAPABILITIES, "")
    };
    let mut lines = vec![Line::new(
        format!(
            "{exempt}has(c[2].capabilities) && has(c[2].capabilities.add) && \
             c[2].capabilities.add.exists(a, !(a in {allowed}))"
        ),
        "securityContext.capabilities.add",
        format!(
            "[c[2].capabilities.add.filter(a, !(a in {allowed})).join(', ')]\
             .map(t, SHORT(t))[0] + ' may not be added{only}'"
        ),
    )];
    if restricted {
        lines.push(Line::new(
            format!("{exempt}!('ALL' in c[2].?capabilities.?drop.orValue([]))"),
            "securityContext.capabilities.drop",
            "'ALL must be dropped'",
        ));
    }
    Terms::containers(lines)
}

pub(super) fn escalation(standard: &Standard) -> Terms {
    if !standard.is_restricted() || !standard.since(8) {
        return Terms::default();
    }
    let exempt = standard.unless_windows();
    Terms::containers([Line::new(
        format!("{exempt}c[2].?allowPrivilegeEscalation.orValue(true)"),
        "securityContext.allowPrivilegeEscalation",
        "'it must be set to false'",
    )])
}

/// A container that sets nothing has what the Pod sets. Where that is wrong, it is said of the Pod
/// alone.
pub(super) fn non_root(standard: &Standard) -> Terms {
    const FIELD: &str = "securityContext.runAsNonRoot";
    if !standard.is_restricted() {
        return Terms::default();
    }
    let exempt = standard.unless_user_namespace();
    let mut terms = Terms::contexts(|context| {
        vec![Line::new(
            format!("{exempt}!{context}.?runAsNonRoot.orValue(true)"),
            FIELD,
            "'false is not allowed'",
        )]
    });
    terms.container.push(Line::new(
        format!(
            "{exempt}!has(c[2].runAsNonRoot) && !has(variables.podSecurityContext.runAsNonRoot)"
        ),
        FIELD,
        "'it must be set to true, here or on the Pod'",
    ));
    terms
}

pub(super) fn user(standard: &Standard) -> Terms {
    if !standard.is_restricted() || !standard.since(23) {
        return Terms::default();
    }
    let exempt = standard.unless_user_namespace();
    Terms::contexts(|context| {
        vec![Line::new(
            format!("{exempt}{context}.?runAsUser.orValue(1) == 0"),
            "securityContext.runAsUser",
            "'0 is not allowed'",
        )]
    })
}
