//! The crates of a checkout, as Cargo describes them.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::shell::{cargo, output_of};

#[derive(Deserialize)]
struct Workspace<P> {
    packages: Vec<P>,
}

/// A crate of a workspace.
#[derive(Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) manifest_path: PathBuf,
    pub(crate) dependencies: Vec<Dependency>,
    /// Registries to which the crate may be published. `None` allows all registries, an empty list allows none.
    pub(crate) publish: Option<Vec<String>>,
}

/// A dependency of a crate.
#[derive(Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// Kind of the dependency, `dev` or `build`; `None` for a dependency of the library or of a program.
    pub(crate) kind: Option<String>,
    /// Allowed versions; `*` if the manifest names no version.
    pub(crate) req: String,
    /// Folder of the dependency, if it is a crate of the workspace.
    pub(crate) path: Option<PathBuf>,
}

impl Package {
    /// Returns the folder with the crate's manifest.
    pub(crate) fn folder(&self) -> &Path {
        self.manifest_path.parent().unwrap_or(&self.manifest_path)
    }

    /// Returns whether the crate may be published.
    pub(crate) fn is_published(&self) -> bool {
        self.publish.as_ref().is_none_or(|registries| !registries.is_empty())
    }
}

/// Returns the crates of the checkout in the folder `checkout`.
pub(crate) fn packages(checkout: &Path) -> Result<Vec<Package>, String> {
    described(checkout)
}

/// Returns what a type `P` states about each crate of the checkout in the folder `checkout`.
pub(crate) fn described<P: DeserializeOwned>(checkout: &Path) -> Result<Vec<P>, String> {
    let mut metadata = cargo(&["metadata", "--no-deps", "--format-version", "1", "--offline"]);
    metadata.current_dir(checkout);
    let workspace: Workspace<P> =
        serde_json::from_str(&output_of(metadata)?).map_err(|error| format!("cargo metadata: {error}"))?;
    Ok(workspace.packages)
}
