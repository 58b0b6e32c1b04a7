// A runtime whose device is what the test says, and whose launches are Python's.
#include "cuda_runtime_api.h"

#include <cstdlib>
#include <cstring>

extern "C" {
int stub_capability = 90, stub_multiprocessors = 132, stub_shared = 232448, stub_error = 0;
int stub_ready_error = 0;  // of making a kernel ready
int (*stub_launch)(const void* function, const cudaLaunchConfig_t* config, void** arguments) = nullptr;

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return static_cast<cudaError_t>(stub_error);
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = stub_error ? 0 : 1;
  return static_cast<cudaError_t>(stub_error);
}

cudaError_t cudaSetDevice(int) { return cudaSuccess; }

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  if (attribute == cudaDevAttrMultiProcessorCount) *value = stub_multiprocessors;
  if (attribute == cudaDevAttrComputeCapabilityMajor) *value = stub_capability / 10;
  if (attribute == cudaDevAttrComputeCapabilityMinor) *value = stub_capability % 10;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute attribute, int value) {
  if (stub_ready_error) return static_cast<cudaError_t>(stub_ready_error);
  const bool shared = attribute == cudaFuncAttributeMaxDynamicSharedMemorySize;
  return shared && value > stub_shared ? cudaErrorInvalidValue : cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
  *blocks = 1;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void*, const cudaLaunchConfig_t* config) {
  *clusters = stub_multiprocessors / static_cast<int>(config->gridDim.x);
  return cudaSuccess;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  return static_cast<cudaError_t>(stub_launch(function, config, arguments));
}

cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "an error of the stub"; }
cudaError_t cudaMalloc(void** memory, size_t bytes) {
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* memory, int value, size_t bytes) {
  std::memset(memory, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
}
