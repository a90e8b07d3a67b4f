//! Which `MemberClusters` lead to the same cluster. Two tasks in one cluster would undo each other's
//! work, so the one that was there first keeps it.

use std::collections::BTreeMap;

use kube::ResourceExt as _;

use super::hub::Member;
use crate::api::ClusterState;
use crate::fleet::{Source, Verdict};

/// What is known of the clusters that `MemberClusters` lead to.
#[derive(Default)]
pub(crate) struct Identities {
    /// By the name of the `MemberCluster`: how it was reached, and which cluster it was.
    known: BTreeMap<String, Known>,
    /// By cluster, the name of the `MemberCluster` that has it.
    owners: BTreeMap<String, String>,
}

struct Known {
    source: Source,
    identity: Option<String>,
}

impl Identities {
    /// Takes note of which cluster a `MemberCluster` leads to.
    pub(crate) fn learn(&mut self, name: &str, identity: &str) {
        if let Some(known) = self.known.get_mut(name) {
            known.identity = Some(identity.to_owned());
        }
    }

    /// Makes unusable those of `members` that lead to a cluster which an older one leads to.
    pub(crate) fn refuse_doubles(&mut self, members: &mut [Member]) {
        let mut order: Vec<usize> = (0..members.len()).collect();
        order.sort_by_key(|&index| {
            let object = &members[index].object;
            (object.creation_timestamp(), object.name_any())
        });
        self.owners.clear();
        for index in order {
            let Member { object, source } = &mut members[index];
            let name = object.name_any();
            let known = self.known.entry(name.clone()).or_insert_with(|| Known {
                source: source.clone(),
                identity: None,
            });
            if known.source != *source {
                known.source = source.clone();
                known.identity = None;
            }
            let Some(identity) = &known.identity else {
                continue;
            };
            match self.owners.get(identity) {
                None => {
                    self.owners.insert(identity.clone(), name);
                }
                Some(owner) => *source = Source::Unusable(double(owner)),
            }
        }
        let names: Vec<_> = members
            .iter()
            .map(|member| member.object.name_any())
            .collect();
        // Those that leave are asked for once more, see `shares`.
        let owners = &self.owners;
        self.known.retain(|name, known| {
            let shared = known
                .identity
                .as_ref()
                .is_some_and(|i| owners.contains_key(i));
            names.contains(name) || shared
        });
    }

    /// Why nothing is to be removed from the cluster of a `MemberCluster` that leaves, if so.
    pub(crate) fn shares(&self, name: &str) -> Option<Verdict> {
        let identity = self.known.get(name)?.identity.as_ref()?;
        let owner = self.owners.get(identity).filter(|owner| *owner != name)?;
        Some(double(owner))
    }
}

fn double(owner: &str) -> Verdict {
    Verdict::new(
        ClusterState::Pending,
        "DuplicateCluster",
        format!(
            "it leads to the same cluster as the MemberCluster {owner}, which keeps it: delete one"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::MemberCluster;

    fn member(name: &str, created: &str) -> Member {
        let object: MemberCluster = serde_saphyr::from_str(&format!(
            "apiVersion: boundarypolicy.dev/v1alpha1\nkind: MemberCluster\n\
             metadata: {{name: {name}, creationTimestamp: {created}}}\nspec: {{local: {{}}}}"
        ))
        .unwrap();
        Member {
            object,
            source: Source::Kubeconfig(name.as_bytes().to_vec()),
        }
    }

    fn usable(identities: &mut Identities, members: &[&str]) -> Vec<bool> {
        let times = ["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"];
        let mut members: Vec<_> = members
            .iter()
            .zip(times)
            .map(|(name, created)| member(name, created))
            .collect();
        identities.refuse_doubles(&mut members);
        let usable = |member: &Member| !matches!(member.source, Source::Unusable(_));
        members.iter().map(usable).collect()
    }

    #[test]
    fn the_older_of_two_keeps_the_cluster_and_its_objects() {
        let mut identities = Identities::default();
        assert_eq!(usable(&mut identities, &["b", "a"]), [true, true]);
        identities.learn("a", "1");
        identities.learn("b", "1");
        assert_eq!(usable(&mut identities, &["b", "a"]), [true, false]);
        // It stays so, although the younger can tell nothing any more.
        assert_eq!(usable(&mut identities, &["b", "a"]), [true, false]);
        // The younger leaves: nothing is removed.
        assert_eq!(usable(&mut identities, &["b"]), [true]);
        assert!(identities.shares("a").is_some());
        assert_eq!(identities.shares("b"), None);
        // The older leaves: the younger takes over.
        assert_eq!(usable(&mut identities, &["a"]), [true]);
        assert!(identities.shares("b").is_some());
    }
}
