# The floors of the stack, lowest first: one folder under src/ each. A floor may include only its
# own folder and folders before it in this list (floors of equal rank stand together; see
# docs/architecture.md). Sources and tests are found by folder, so a new file needs no entry here.
set(NOBOUNCE_FLOORS base wire memory swiotlb dma page_pool skb netdev virtio ip udp tcp socket)

function(nobounce_floor_sources floor out)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${floor}/*.cc)
  set(${out} ${sources} PARENT_SCOPE)
endfunction()
