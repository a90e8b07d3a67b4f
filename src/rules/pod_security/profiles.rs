//! Profiles that confine the processes of a container.

use super::{Line, POD, Standard, Terms};

pub(super) fn se_linux(standard: &Standard) -> Terms {
    let mut types = vec!["container_t", "container_init_t", "container_kvm_t"];
    if standard.since(31) {
        types.push("container_engine_t");
    }
    Terms::contexts(|context| {
        let options = format!("{context}.seLinuxOptions");
        let line = |field: &str, forbidden: &str, reason: &str| {
            Line::new(
                format!("has({options}) && has({options}.{field}) && {forbidden}"),
                format!("securityContext.seLinuxOptions.{field}"),
                format!("SHORT({options}.{field}) + ' {reason}'"),
            )
        };
        vec![
            line(
                "type",
                &format!("!({options}.type in ['', '{}'])", types.join("', '")),
                &format!("is not allowed, only {}", types.join(", ")),
            ),
            line("user", &format!("{options}.user != ''"), "may not be set"),
            line("role", &format!("{options}.role != ''"), "may not be set"),
        ]
    })
}

/// `profile` is there and confines nothing.
fn unconfined(profile: &str) -> String {
    format!("has({profile}) && !({profile}.type in ['RuntimeDefault', 'Localhost'])")
}

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
    let mut terms = Terms::contexts(|context| {
        let profile = format!("{context}.seccompProfile");
        vec![Line::new(
            format!("{exempt}{}", unconfined(&profile)),
            FIELD,
            format!("SHORT({profile}.type) + ' is not allowed, only RuntimeDefault or Localhost'"),
        )]
    });
    if standard.is_restricted() {
        terms.container.push(Line::new(
            format!(
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
    let line = |key: &str| {
        let annotation = format!("variables.podAnnotations[?{key}].orValue('runtime/default')");
        Line::new(
            format!(
                "!({annotation} in ['runtime/default', 'docker/default']) && \
                 !{annotation}.startsWith('localhost/')"
            ),
            "the seccomp annotation",
            format!("[{annotation}].map(a, SHORT(a))[0] + ' is not allowed'"),
        )
    };
    Terms {
        pod: vec![line("'seccomp.security.alpha.kubernetes.io/pod'").text(&POD)],
        container: vec![line(
            "('container.seccomp.security.alpha.kubernetes.io/' + c[1].name)",
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
    let of_pod = "variables.podSecurityContext.appArmorProfile";
    let pod = Line::new(
        unconfined(of_pod),
        FIELD,
        format!("SHORT({of_pod}.type) + ' {ALLOWED}'"),
    );
    let container = Line::new(
        format!(
            "{} || c[1].?name.orValue('') in variables.podSecurityAppArmor",
            unconfined("c[2].appArmorProfile")
        ),
        FIELD,
        format!("'Unconfined, here or in the annotation, {ALLOWED}'"),
    );
    Terms {
        pod: vec![pod.text(&POD)],
        container: vec![container],
    }
}
