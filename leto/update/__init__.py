"""The Resumable Model Updater: carries update plans out on a device."""
