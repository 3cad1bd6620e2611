from PyInstaller.utils.hooks import can_import_module, collect_submodules, copy_metadata

_NOT_PACKED = ("xpgrad.cli", "xpgrad._cases", "xpgrad._testing")  # the commands, which use all frameworks

# The compiler reads the texts of functions.
_PACKAGES = ("xpgrad", "xpgrad_jax", "xpgrad_keras", "xpgrad_mlx", "xpgrad_onnx", "xpgrad_torch")
module_collection_mode = dict.fromkeys(_PACKAGES, "py")

datas = copy_metadata("xpgrad")  # its entry points name the adapters' engines
hiddenimports = collect_submodules("xpgrad", filter=lambda name: not name.startswith(_NOT_PACKED))
for namespace in ("numpy", "torch"):  # array-api-compat imports them by names that it builds
    if can_import_module(namespace):
        hiddenimports += collect_submodules(f"array_api_compat.{namespace}")
