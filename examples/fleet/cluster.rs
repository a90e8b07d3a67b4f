//! A control plane and the requests that kubectl would send to it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use control_plane::ControlPlane;
use http::Request;
use http::header::ACCEPT;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{
    Api, ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
    TypeMeta,
};
use kube::client::Body;
use kube::core::Status;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::SOON;
use crate::table::Table;

/// How long a token holds: a day, so that `--keep` can be left running.
const TOKEN_SECONDS: i64 = 24 * 60 * 60;

/// A control plane with a name.
pub(crate) struct Cluster {
    pub(crate) name: &'static str,
    pub(crate) plane: ControlPlane,
    pub(crate) client: Client,
}

/// What an API server answered to the creation of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Why it was refused, if it was.
    pub(crate) refusal: Option<String>,
    /// What kubectl prints as warnings.
    pub(crate) warnings: Vec<String>,
}

impl Cluster {
    pub(crate) fn new(name: &'static str, plane: ControlPlane) -> anyhow::Result<Self> {
        let client = plane.client()?;
        Ok(Self {
            name,
            plane,
            client,
        })
    }

    /// As `kubectl apply --server-side -f` with one object.
    pub(crate) async fn apply(&self, object: &Value) -> anyhow::Result<()> {
        let object: DynamicObject = serde_json::from_value(object.clone())?;
        let resource = resource(&object)?;
        let name = object.metadata.name.clone().unwrap_or_default();
        let api: Api<DynamicObject> = match &object.metadata.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        };
        let params = PatchParams::apply("fleet-example").force();
        api.patch(&name, &params, &Patch::Apply(&object))
            .await
            .with_context(|| {
                format!("{} {name} can't be applied to {}", resource.kind, self.name)
            })?;
        Ok(())
    }

    /// As `kubectl apply --server-side -f` with a file.
    pub(crate) async fn apply_file(&self, path: &Path) -> anyhow::Result<()> {
        for object in documents(path)? {
            self.apply(&object).await?;
        }
        Ok(())
    }

    /// Waits until the API server serves a kind that was just defined.
    pub(crate) async fn served<K>(&self) -> anyhow::Result<()>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug,
    {
        let api: Api<K> = Api::all(self.client.clone());
        let one = ListParams::default().limit(1);
        until(&format!("{} is served", K::kind(&())), async || {
            Ok(api.list(&one).await.ok().map(|_| ()))
        })
        .await
    }

    /// A token of a service account, as `kubectl create token` gets it.
    pub(crate) async fn token(&self, namespace: &str, account: &str) -> anyhow::Result<String> {
        let api: Api<ServiceAccount> = Api::namespaced(self.client.clone(), namespace);
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                expiration_seconds: Some(TOKEN_SECONDS),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let answer = api
            .create_token_request(account, &PostParams::default(), &request)
            .await?;
        let token = answer.status.and_then(|status| status.token);
        token.context("the API server gave no token")
    }

    /// As `kubectl create -f`, perhaps with `--dry-run=server`.
    pub(crate) async fn create(&self, object: &Value, dry_run: bool) -> anyhow::Result<Answer> {
        let parsed: DynamicObject = serde_json::from_value(object.clone())?;
        let resource = resource(&parsed)?;
        let namespace = parsed.metadata.namespace.as_deref();
        let url = DynamicObject::url_path(&resource, namespace);
        let params = PostParams {
            dry_run,
            ..PostParams::default()
        };
        let request = kube::core::Request::new(url).create(&params, serde_json::to_vec(object)?)?;
        let response = self.client.send(request.map(Body::from)).await?;
        let warnings = response.headers().get_all(http::header::WARNING);
        let warnings = warnings
            .iter()
            .filter_map(|value| warning(value.as_bytes()));
        let warnings = warnings.collect();
        let code = response.status();
        if code.is_success() {
            return Ok(Answer {
                refusal: None,
                warnings,
            });
        }
        let bytes = response.into_body().collect_bytes().await?;
        let status: Status = serde_json::from_slice(&bytes)
            .with_context(|| format!("{} answered {code}", self.name))?;
        if status.reason != "Forbidden" {
            bail!("{} answered {code}: {}", self.name, status.message);
        }
        Ok(Answer {
            refusal: Some(status.message),
            warnings,
        })
    }

    /// What `kubectl get` prints of all objects of a kind: the server makes the table.
    pub(crate) async fn table<K: Resource<DynamicType = ()>>(&self) -> anyhow::Result<Table> {
        let request = Request::get(K::url_path(&(), None))
            .header(ACCEPT, "application/json;as=Table;v=v1;g=meta.k8s.io")
            .body(Vec::new())?;
        let text = self.client.request_text(request).await?;
        Ok(serde_json::from_str(&text)?)
    }
}

/// The text of a `Warning` header: `299 - "text"`.
fn warning(value: &[u8]) -> Option<String> {
    let value = String::from_utf8_lossy(value);
    let quoted = value.split_once('"')?.1.rsplit_once('"')?.0;
    let mut text = String::new();
    let mut characters = quoted.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => text.extend(characters.next()),
            other => text.push(other),
        }
    }
    Some(text)
}

fn resource(object: &DynamicObject) -> anyhow::Result<ApiResource> {
    let types: &TypeMeta = object
        .types
        .as_ref()
        .context("an object has no apiVersion and kind")?;
    Ok(ApiResource::from_gvk(&GroupVersionKind::try_from(types)?))
}

/// The YAML documents of a file, or of all files of a folder, by name.
pub(crate) fn documents(path: &Path) -> anyhow::Result<Vec<Value>> {
    let mut paths = vec![path.to_owned()];
    if path.is_dir() {
        let entries = std::fs::read_dir(path)?.collect::<Result<Vec<_>, _>>()?;
        paths = entries.into_iter().map(|entry| entry.path()).collect();
        paths.sort();
    }
    let read = |path: &PathBuf| -> anyhow::Result<Vec<Value>> {
        let text = std::fs::read_to_string(path)?;
        Ok(serde_saphyr::from_multiple(&text)?)
    };
    let mut documents = Vec::new();
    for path in &paths {
        let read = read(path).with_context(|| format!("{} can't be read", path.display()))?;
        documents.extend(read);
    }
    Ok(documents)
}

/// Asks again and again until there is something, and says every few seconds what is awaited.
pub(crate) async fn until<T>(
    what: &str,
    mut ask: impl AsyncFnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let begun = Instant::now();
    let mut next = Duration::from_secs(10);
    loop {
        if let Some(found) = ask().await? {
            return Ok(found);
        }
        let elapsed = begun.elapsed();
        if elapsed >= SOON {
            bail!("waited {} s in vain until {what}", SOON.as_secs());
        }
        if elapsed >= next {
            next += Duration::from_secs(10);
            crate::progress(&format!("waiting until {what}: {} s", elapsed.as_secs()));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
