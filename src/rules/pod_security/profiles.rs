//! What confines the processes of a container: SELinux, seccomp and AppArmor.

use super::{CONTAINER, Place, Standard, Terms};

pub(super) fn se_linux(standard: &Standard) -> Terms {
    let mut types = vec!["container_t", "container_init_t", "container_kvm_t"];
    if standard.since(31) {
        types.push("container_engine_t");
    }
    Terms::both(|place| {
        let options = format!("{}.seLinuxOptions", place.context);
        let line = |field: &str, allowed: &str, reason: &str| {
            place.line(
                &format!("!({options}.?{field}.orValue('') in ['{allowed}'])"),
                &format!("securityContext.seLinuxOptions.{field}"),
                &format!("SHORT({options}.{field}) + ' {reason}'"),
            )
        };
        let kind = line(
            "type",
            &format!("', '{}", types.join("', '")),
            &format!("is not allowed, only {}", types.join(", ")),
        );
        let user = line("user", "", "may not be set");
        let role = line("role", "", "may not be set");
        format!("(has({options}) ? {kind} + {user} + {role} : '')")
    })
}

const CONFINED: &str = "['RuntimeDefault', 'Localhost']";

/// At `restricted` a container must have a profile, its own or that of the Pod. Before 1.19 profiles
/// were annotations.
pub(super) fn seccomp(standard: &Standard) -> Terms {
    const FIELD: &str = "securityContext.seccompProfile.type";
    if !standard.since(19) {
        return seccomp_annotations();
    }
    let exempt = if standard.is_restricted() {
        standard.unless_windows()
    } else {
        ""
    };
    let mut terms = Terms::both(|place| {
        let profile = format!("{}.seccompProfile", place.context);
        place.line(
            &format!("{exempt}has({profile}) && !({profile}.type in {CONFINED})"),
            FIELD,
            &format!("SHORT({profile}.type) + ' is not allowed, only RuntimeDefault or Localhost'"),
        )
    });
    if standard.is_restricted() {
        terms.container.push(CONTAINER.line(
            &format!(
                "{exempt}!has(c[2].seccompProfile) && \
                 !has(variables.podSecurityContext.seccompProfile)"
            ),
            FIELD,
            "'it must be set, here or on the Pod, to RuntimeDefault or Localhost'",
        ));
    }
    terms
}

fn seccomp_annotations() -> Terms {
    let line = |place: &Place, key: &str| {
        let line = place.line(
            "!(a in ['runtime/default', 'docker/default']) && !a.startsWith('localhost/')",
            "the seccomp annotation",
            "SHORT(a) + ' is not allowed'",
        );
        format!("[variables.podAnnotations[?{key}].orValue('runtime/default')].map(a, {line})[0]")
    };
    Terms {
        pod: vec![line(&super::POD, "'seccomp.security.alpha.kubernetes.io/pod'")],
        container: vec![line(
            &CONTAINER,
            "'container.seccomp.security.alpha.kubernetes.io/' + c[1].name",
        )],
    }
}

/// The names of containers with an annotation that is not allowed. The API server refuses one whose
/// container is not there, copies an annotation to the container, and copied, before 1.31, the
/// profile of the Pod to annotations: what is said of the Pod need not be said again.
pub(super) const APP_ARMOR_ANNOTATED: &str = "variables.podAnnotations.filter(k, \
    k.startsWith('container.apparmor.security.beta.kubernetes.io/') && \
    !(variables.podAnnotations[k] in ['', 'runtime/default']) && \
    !variables.podAnnotations[k].startsWith('localhost/') && \
    !(variables.podAnnotations[k] == 'unconfined' && \
    variables.podSecurityContext.?appArmorProfile.?type.orValue('') == 'Unconfined'))\
    .map(k, k.substring(47))";

/// The annotation and the field of a container are the same to the API server, so they are to the
/// sentence too.
pub(super) fn app_armor(_: &Standard) -> Terms {
    const FIELD: &str = "securityContext.appArmorProfile.type";
    const ALLOWED: &str = "is not allowed, only RuntimeDefault or Localhost";
    let unconfined =
        |profile: &str| format!("has({profile}) && !({profile}.type in {CONFINED})");
    let pod = super::POD.line(
        &unconfined("variables.podSecurityContext.appArmorProfile"),
        FIELD,
        &format!("SHORT(variables.podSecurityContext.appArmorProfile.type) + ' {ALLOWED}'"),
    );
    let container = CONTAINER.line(
        &format!(
            "{} || (c[1].?name.orValue('') in variables.podSecurityAppArmor)",
            unconfined("c[2].appArmorProfile")
        ),
        FIELD,
        &format!("'Unconfined, here or in the annotation, {ALLOWED}'"),
    );
    Terms {
        pod: vec![pod],
        container: vec![container],
    }
}
