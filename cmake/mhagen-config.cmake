# mhagen_kernel(TARGET [CONFIG.lua] key=value ...)
#
# A static library TARGET of one kernel, of a bundle or a ladder, whose header is TARGET.h, unless there is a key name.
# It is generated while the project is built, and again when its keys, its CONFIG.lua, its tuning file or the generator
# change. Paths are relative to the directory that says so; several ISAs or lengths are given here, not in a
# CONFIG.lua. The library is position-independent, and brings the runtime with it: mhagen::runtime, of which a program
# has one, whatever its number of kernels. mhagen::mhagen is the generator.
#
# For an installed mhagen: find_package(mhagen REQUIRED); else the sources' CMakeLists.txt says where all is.
enable_language(C) # a project may have named C++ alone
if(NOT DEFINED MHAGEN_PROGRAM)
  get_filename_component(prefix ${CMAKE_CURRENT_LIST_DIR}/../../.. ABSOLUTE)
  set(MHAGEN_PROGRAM ${prefix}/bin/mhagen)
  set(MHAGEN_SOURCE ${prefix}/share/mhagen/mhagen.c)
  set(MHAGEN_INCLUDE ${prefix}/include/mhagen)
endif()

if(NOT TARGET mhagen::mhagen)
  find_package(Threads REQUIRED)
  add_executable(mhagen::mhagen IMPORTED GLOBAL)
  set_target_properties(mhagen::mhagen PROPERTIES IMPORTED_LOCATION ${MHAGEN_PROGRAM})
  add_library(mhagen_runtime STATIC EXCLUDE_FROM_ALL ${MHAGEN_SOURCE})
  set_target_properties(mhagen_runtime PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_include_directories(mhagen_runtime PUBLIC ${MHAGEN_INCLUDE})
  target_link_libraries(mhagen_runtime PUBLIC Threads::Threads)
  add_library(mhagen::runtime ALIAS mhagen_runtime)
endif()

function(mhagen_kernel target)
  set(dir ${CMAKE_CURRENT_BINARY_DIR}/mhagen/${target})
  set(name ${target})
  set(words ${ARGN})
  set(files)
  set(members)
  set(lengths)
  foreach(word IN LISTS ARGN)
    if(word MATCHES "^name=(.*)$")
      set(name ${CMAKE_MATCH_1})
    elseif(word MATCHES "^isa=(.*)$")
      string(REPLACE "+" ";" isas ${CMAKE_MATCH_1})
      list(TRANSFORM isas REPLACE "^x86$" "scalar;avx2;avx512")
      list(TRANSFORM isas REPLACE "^arm$" "neon")
      list(REMOVE_DUPLICATES isas)
      list(LENGTH isas count)
      if(count GREATER 1)
        set(members ${isas})
      endif()
    elseif(word MATCHES "^(seq|seq_kv)=(.*,.*)$")
      string(REPLACE "," ";" lengths ${CMAKE_MATCH_2})
      set(letter s)
      if(word MATCHES "^seq_kv=")
        set(letter t)
      endif()
      list(TRANSFORM lengths PREPEND ${letter})
    elseif(word MATCHES "^tuned=(.*)$" OR word MATCHES "^([^=]*)$")
      get_filename_component(file ${CMAKE_MATCH_1} ABSOLUTE)
      list(APPEND files ${file})
    endif()
  endforeach()
  if(name STREQUAL target AND NOT "name=${name}" IN_LIST words)
    list(APPEND words name=${name})
  endif()
  # What a bundle is made of may be a ladder.
  set(kernels ${name})
  set(sources ${dir}/${name}.c)
  foreach(parts IN ITEMS members lengths)
    set(inner)
    foreach(kernel IN LISTS kernels)
      foreach(part IN LISTS ${parts})
        list(APPEND inner ${kernel}_${part})
        list(APPEND sources ${dir}/${kernel}_${part}.c)
      endforeach()
    endforeach()
    if(inner)
      set(kernels ${inner})
    endif()
  endforeach()
  # Not every build tool sees that a command has changed, but each sees that a file has.
  file(CONFIGURE OUTPUT ${dir}/keys CONTENT "${words}\n")
  # The generator leaves unchanged files alone; touch says that they are up to date.
  add_custom_command(OUTPUT ${sources} ${dir}/${name}.h
    COMMAND mhagen::mhagen gen ${words} -o ${dir} --quiet
    COMMAND ${CMAKE_COMMAND} -E touch ${sources} ${dir}/${name}.h
    DEPENDS mhagen::mhagen $<TARGET_FILE:mhagen::mhagen> ${dir}/keys ${files}
    WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}
    COMMENT "Generating ${name}" VERBATIM)
  add_library(${target} STATIC ${sources} ${dir}/${name}.h)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_include_directories(${target} PUBLIC ${dir})
  target_link_libraries(${target} PUBLIC mhagen::runtime)
endfunction()
